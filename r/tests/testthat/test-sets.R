test_that("sets are factors in the job's order, with labels", {
  sets <- dp_sets(dp_open(dp_example()))
  expect_s3_class(sets, "imputationList")
  expect_length(sets$imputations, 3L)
  first <- sets$imputations[[1L]]
  expect_equal(levels(first$field), c("Arts", "Law"))
  expect_equal(attr(first$field, "label"), "Field of study")
  expect_equal(levels(dp_sets(dp_open(dp_example()), labels = FALSE)$imputations[[1L]]$field), c("arts", "law"))
})

test_that("estimates are combined by T = B/m + W, and not by Rubin's rule", {
  release <- dp_open(dp_example())
  designs <- dp_designs(release)
  fits <- with(designs, survey::svyglm(salary ~ field + sex))
  combined <- dp_combine(release, fits)
  q <- sapply(fits, coef)
  within <- rowMeans(sapply(fits, function(fit) diag(vcov(fit))))
  between <- apply(q, 1L, var)
  expect_equal(coef(combined), rowMeans(q))
  expect_equal(diag(vcov(combined)), between / 3 + within)
  expect_equal(as.data.frame(combined)$df, unname(2 * (1 + within / (between / 3))^2))
  rubin <- mitools::MIcombine(fits)
  expect_true(all(diag(vcov(rubin)) > diag(vcov(combined)))) # control: another rule gives other figures
  expect_output(print(combined), "T = B/m \\+ W")
  half <- qt(0.975, combined$df) * sqrt(diag(vcov(combined)))
  expect_equal(unname(confint(combined, level = 0.95)[, 2L] - coef(combined)), unname(half))
})

test_that("a release without a stated rule, or a wrong number of estimates, is refused", {
  release <- dp_open(dp_example())
  fits <- with(dp_designs(release), survey::svymean(~salary))
  refused(dp_combine(release, fits[1:2]), "2 estimates, and the release has 3 sets")
  refused(dp_combine(release, list(1, 2, 3)), "no finite coef")
  refused(dp_combine(release, fits, "another rule"), "not one that this package knows")
  earlier <- release
  earlier$statement$combining <- NULL
  refused(dp_combine(earlier, fits), "states no rule")
  expect_equal(coef(dp_combine(earlier, fits, "T = B/m + W")), coef(dp_combine(release, fits)))
  alone <- earlier
  alone$statement$synthetic_sets <- 1L
  refused(dp_combine(alone, fits), "does not tell how sets vary")
  alone$statement$synthetic_sets <- 0L
  refused(dp_sets(alone), "only tables")
  refused(dp_sets("a folder"), "no opened release")
})
