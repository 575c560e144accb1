# Synthetic sets as survey designs, and estimates from all of them.

dp_sets <- function(release, labels = TRUE) {
  refuse_no_release(release)
  count <- as.integer(release$statement$synthetic_sets)
  if (count < 1L) {
    fail("this release has only tables, and no synthetic records", "use release$tables")
  }
  mitools::imputationList(lapply(seq_len(count), function(number) labelled(read_set(release, number), release, labels)))
}

read_set <- function(release, number) {
  files <- names(release$manifest$files)
  csv <- sprintf("synthetic/set-%d.csv", number)
  dta <- sprintf("synthetic/set-%d.dta", number)
  if (csv %in% files) {
    return(read_described(csv, release))
  }
  if (dta %in% files && requireNamespace("haven", quietly = TRUE)) {
    set <- haven::read_dta(file.path(release$folder, dta))
    for (name in names(set)) {
      if (inherits(set[[name]], "haven_labelled")) {
        set[[name]] <- as.character(haven::as_factor(set[[name]]))
      }
    }
    return(set)
  }
  fail(
    sprintf("set %d is there in no form that this package reads", number),
    "let the agency publish it again with `presentation: {formats: [csv]}`, which costs no budget"
  )
}

# Columns with levels become factors in the order of the job, with the codebook's labels; all columns get their label.
labelled <- function(set, release, labels) {
  for (note in release$codebook$notes) {
    name <- note$column
    if (!name %in% names(set)) {
      next
    }
    if (length(note$levels) > 0L) {
      levels <- vapply(note$levels, function(one) one$level, "")
      shown <- vapply(note$levels, function(one) one$label, "")
      present <- as.character(set[[name]])
      levels <- if (all(present %in% c(levels, NA))) levels else shown # a Stata file has labels in place of levels
      set[[name]] <- factor(present, levels, if (labels && !anyDuplicated(shown)) shown else levels)
    }
    attr(set[[name]], "label") <- note$label
  }
  set
}

dp_designs <- function(release, labels = TRUE) {
  sets <- dp_sets(release, labels)
  weight <- release$manifest$job$survey$weight
  weights <- if (is.null(weight) || !weight %in% names(sets$imputations[[1L]])) {
    ~1
  } else {
    stats::reformulate(sprintf("`%s`", weight))
  }
  survey::svydesign(ids = ~1, weights = weights, data = sets)
}

rule <- "T = B/m + W"

dp_combine <- function(release, estimates, stated = release$statement$combining) {
  refuse_no_release(release)
  refuse_no_rule(release, stated)
  each <- lapply(unclass(estimates), function(one) {
    pair <- tryCatch(list(q = stats::coef(one), u = as.matrix(stats::vcov(one))), error = function(e) NULL)
    if (is.null(pair) || !is.numeric(pair$q) || !all(is.finite(pair$q)) || !all(is.finite(pair$u))) {
      fail("an estimate has no finite coef() and vcov()", "give what with(dp_designs(release), svymean(...)) returns")
    }
    pair
  })
  sets <- as.integer(release$statement$synthetic_sets)
  if (length(each) != sets) {
    fail(sprintf("%d estimates, and the release has %d sets", length(each), sets), "do the same analysis on every set")
  }
  q <- do.call(rbind, lapply(each, function(one) one$q))
  within <- Reduce(`+`, lapply(each, function(one) one$u)) / sets
  between <- stats::cov(q) / sets
  total <- between + within
  b <- diag(as.matrix(between))
  df <- ifelse(b > 0, (sets - 1) * (1 + diag(as.matrix(within)) / b)^2, Inf)
  dimnames(total) <- list(colnames(q), colnames(q))
  structure(
    class = "dp_combined",
    list(coefficients = colMeans(q), variance = total, df = stats::setNames(df, colnames(q)), sets = sets)
  )
}

refuse_no_rule <- function(release, stated) {
  count <- as.integer(release$statement$synthetic_sets)
  quote_tables <- "quote the published tables: their standard errors include the error of the protection"
  if (is.null(stated) && count < 2L) {
    fail("one synthetic set, or none, does not tell how sets vary", quote_tables)
  }
  if (is.null(stated)) {
    fail(
      "the release states no rule for combining its sets",
      paste0(quote_tables, ". A release of dpdist 0.1.1 or earlier has a rule only where its statement$standard_errors names ",
        "T = B/m + W: then give stated = \"T = B/m + W\"")
    )
  }
  if (!identical(stated, rule)) {
    fail(sprintf("the rule '%s' is not one that this package knows", stated), "install a later version of the R package dpdist")
  }
}

coef.dp_combined <- function(object, ...) object$coefficients

vcov.dp_combined <- function(object, ...) object$variance

confint.dp_combined <- function(object, parm, level = 0.9, ...) {
  half <- stats::qt((1 + level) / 2, object$df) * sqrt(diag(object$variance))
  limits <- cbind(object$coefficients - half, object$coefficients + half)
  colnames(limits) <- paste(format(100 * c((1 - level) / 2, (1 + level) / 2), trim = TRUE), "%")
  if (missing(parm)) limits else limits[parm, , drop = FALSE]
}

as.data.frame.dp_combined <- function(x, row.names = NULL, optional = FALSE, ...) {
  limits <- stats::confint(x)
  data.frame(
    estimate = x$coefficients, standard_error = sqrt(diag(x$variance)), df = x$df,
    lower = limits[, 1L], upper = limits[, 2L], row.names = names(x$coefficients)
  )
}

print.dp_combined <- function(x, ...) {
  cat(sprintf("Combined over %d synthetic sets by %s; 90 %% intervals\n", x$sets, rule))
  print(as.data.frame(x), ...)
  invisible(x)
}
