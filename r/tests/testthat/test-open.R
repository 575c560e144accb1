test_that("a whole release opens with its tables, statement and labels", {
  release <- dp_open(dp_example())
  expect_s3_class(release$tables$counts, "tbl_df")
  counts <- release$tables$counts
  expect_type(counts$estimate, "double")
  expect_type(counts$suppressed, "logical")
  expect_true(all(counts$df > 0, na.rm = TRUE) && any(is.infinite(counts$df)))
  expect_equal(release$statement$guarantee, "asymptotic")
  labels <- dp_labels(release)
  expect_equal(labels$level_label[labels$column == "field"], c("Arts", "Law"))
  expect_output(print(release), "Release of graduates 2021")
})

test_that("a workspace stands for its public folder", {
  workspace <- tempfile("workspace-")
  dir.create(workspace)
  file.copy(dp_example(), workspace, recursive = TRUE)
  file.rename(file.path(workspace, "release"), file.path(workspace, "public"))
  expect_s3_class(dp_open(workspace), "dp_release")
})

test_that("a wrong folder is named with what to do", {
  refused(dp_open(file.path(tempdir(), "nowhere")), "there is no folder")
  refused(dp_open(tempdir()), "it has no manifest.json")
  refused(dp_open(c("a", "b")), "one text")
})

test_that("a changed, a missing and an added file are named", {
  folder <- spoilt()
  expect_s3_class(dp_open(folder), "dp_release") # control
  cat(" ", file = file.path(folder, "statement.json"), append = TRUE)
  refused(dp_open(folder), "statement.json: it was changed since the release")
  folder <- spoilt()
  unlink(file.path(folder, "synthetic", "set-2.csv"))
  refused(dp_open(folder), "synthetic/set-2.csv: it is missing")
  folder <- spoilt()
  writeLines("more", file.path(folder, "tables", "more.csv"))
  refused(dp_open(folder), "tables/more.csv: manifest.json does not list it")
})

test_that("a manifest that was edited is refused, and one that leads out of the folder", {
  folder <- spoilt()
  path <- file.path(folder, "manifest.json")
  text <- readChar(path, file.size(path), useBytes = TRUE)
  writeChar(sub("graduates", "graduands", text, fixed = TRUE), path, eos = NULL)
  refused(dp_open(folder), "its release id does not follow from it")
  folder <- spoilt()
  restated(folder, function(text) sub("\"index.html\"", "\"../index.html\"", text, fixed = TRUE))
  refused(dp_open(folder), "leads out of the folder")
})

test_that("a symbolic link is refused", {
  skip_on_os("windows")
  folder <- spoilt()
  file.rename(file.path(folder, "index.html"), away <- tempfile())
  file.symlink(away, file.path(folder, "index.html"))
  refused(dp_open(folder), "a symbolic link leads to it")
})

test_that("a later format is refused by its number", {
  folder <- spoilt()
  restated(folder, function(text) text)
  expect_s3_class(dp_open(folder), "dp_release") # control: the same edit with this format
  restated(folder, function(text) sub("\"format\":1,", "\"format\":2,", text, fixed = TRUE))
  refused(dp_open(folder), "format 2, and this package reads formats up to 1")
})

test_that("a signature is checked", {
  expect_true(dp_open(dp_example(), agency())$signed)
  expect_true(dp_open(dp_example(), readLines(agency())[[2L]])$signed)
  refused(dp_open(dp_example(), "no key"), "no public key")
  folder <- spoilt()
  restated(folder, function(text) sub("\"period\":\"2021\"", "\"period\":\"2022\"", text, fixed = TRUE))
  refused(dp_open(folder, agency()), "the signature is not of this release")
  unlink(file.path(folder, "manifest.json.minisig"))
  refused(dp_open(folder, agency()), "is not signed")
  other <- readLines(agency())[[2L]]
  substr(other, 5, 5) <- if (substr(other, 5, 5) == "A") "B" else "A"
  refused(dp_open(dp_example(), other), "another key")
})

test_that("a folder that is not for publication opens with a warning", {
  folder <- spoilt()
  writeLines("This folder is held: nobody has approved it yet.", file.path(folder, "NOT_FOR_PUBLICATION.txt"))
  expect_warning(dp_open(folder), "not for publication: This folder is held")
})

test_that("an apostrophe that guards a spreadsheet is taken off, and no other", {
  expect_equal(without_apostrophe(c("'=1+1", "'tis", "-5", NA, "'-x"), "'-x"), c("=1+1", "'tis", "-5", NA, "'-x"))
})
