# A release as an R object: tables, statement, codebook.

dp_open <- function(dir, key = NULL) {
  folder <- public_folder(dir)
  manifest <- whole_manifest(folder)
  if (!is.null(key)) {
    refuse_unsigned(folder, key)
  }
  statement <- read_object(folder, "statement.json")
  refuse_format("statement.json", statement$format, formats[["statement"]])
  unfit <- file.path(folder, "NOT_FOR_PUBLICATION.txt")
  if (file.exists(unfit)) {
    warning("this folder is not for publication: ", readLines(unfit, n = 1L, warn = FALSE), call. = FALSE)
  }
  codebook <- read_object(folder, "codebook.json")
  release <- structure(
    class = "dp_release",
    list(folder = folder, manifest = manifest, statement = statement, codebook = codebook, signed = !is.null(key))
  )
  urls <- vapply(codebook$tables, function(one) one$url, "")
  urls <- urls[grepl("^tables/.*\\.csv$", urls) & !grepl("\\.wide\\.csv$", urls)]
  release$tables <- stats::setNames(lapply(urls, read_described, release = release), sub("^tables/(.*)\\.csv$", "\\1", urls))
  release
}

dp_example <- function() system.file("extdata", "release", package = "dpdist", mustWork = TRUE)

# A CSV file of the release as a tibble, with the types that the codebook states.
read_described <- function(url, release) {
  about <- Filter(function(one) identical(one$url, url), release$codebook$tables)
  if (!url %in% names(release$manifest$files) || length(about) != 1L) {
    fail(sprintf("the codebook does not describe %s", url), fetch_again)
  }
  columns <- about[[1L]]$tableSchema$columns
  kinds <- vapply(columns, function(one) if (is.list(one$datatype)) one$datatype$base else one$datatype, "")
  raw <- utils::read.csv(
    file.path(release$folder, url),
    colClasses = "character", check.names = FALSE, na.strings = "", encoding = "UTF-8", quote = "\""
  )
  titles <- vapply(columns, function(one) one$titles, "")
  if (!identical(names(raw), titles)) {
    fail(sprintf("the columns of %s are not those that the codebook describes", url), fetch_again)
  }
  for (number in seq_along(raw)) {
    raw[[number]] <- switch(kinds[[number]],
      double = as.numeric(raw[[number]]),
      integer = as.numeric(raw[[number]]),
      boolean = raw[[number]] == "true",
      without_apostrophe(raw[[number]], levels_of(release, titles[[number]]))
    )
  }
  names(raw) <- without_apostrophe(titles, character())
  tibble::as_tibble(raw)
}

# dpdist writes an apostrophe before texts that a spreadsheet would run as a formula.
without_apostrophe <- function(texts, levels) {
  marked <- !is.na(texts) & !texts %in% levels & grepl("^'[-=@+\uff1d\uff20\uff0d\uff0b]", texts)
  texts[marked] <- substring(texts[marked], 2L)
  texts
}

levels_of <- function(release, name) {
  note <- Filter(function(one) identical(one$column, name), release$codebook$notes)
  if (length(note) == 1L) vapply(note[[1L]]$levels, function(one) one$level, "") else character()
}

dp_labels <- function(release) {
  refuse_no_release(release)
  rows <- lapply(release$codebook$notes, function(note) {
    levels <- if (length(note$levels) > 0L) note$levels else list(list(level = NA_character_, label = NA_character_))
    data.frame(
      column = note$column, label = note$label, unit = if (is.null(note$unit)) NA_character_ else note$unit,
      level = vapply(levels, function(one) one$level, ""), level_label = vapply(levels, function(one) one$label, "")
    )
  })
  tibble::as_tibble(do.call(rbind, rows))
}

refuse_no_release <- function(release) {
  if (!inherits(release, "dp_release")) {
    fail("this is no opened release", "give what dp_open() returned")
  }
}

print.dp_release <- function(x, ...) {
  stated <- x$statement
  epsilon <- if (is.null(stated$epsilon)) "" else sprintf(", epsilon = %s", stated$epsilon)
  cat(sprintf("Release of %s %s\n", stated$dataset, stated$period))
  cat(sprintf("  guarantee: %s%s\n", stated$guarantee, epsilon))
  cat(sprintf("  tables: %s\n", paste(names(x$tables), collapse = ", ")))
  cat(sprintf("  synthetic sets: %d\n", as.integer(stated$synthetic_sets)))
  cat(sprintf("  signature: %s\n", if (x$signed) "checked" else "not checked (give `key`)"))
  invisible(x)
}
