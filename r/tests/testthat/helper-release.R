# A copy of the example that a test may spoil, and the key that signed it.
spoilt <- function() {
  folder <- tempfile("release-")
  dir.create(folder)
  file.copy(list.files(dp_example(), full.names = TRUE), folder, recursive = TRUE)
  folder
}

agency <- function() system.file("extdata", "agency.key.pub", package = "dpdist", mustWork = TRUE)

refused <- function(act, words) expect_error(act, words, class = "dpdist_error")

# Writes other content for entries of the manifest, with an id that follows from it: what a later dpdist would do.
restated <- function(folder, edit) {
  path <- file.path(folder, "manifest.json")
  text <- edit(readChar(path, file.size(path), useBytes = TRUE))
  text <- sub(",\"release\":\"[0-9a-f]{64}\"", "", text)
  id <- hex(openssl::sha256(charToRaw(text)))
  writeChar(sub(",\"versions\":", sprintf(",\"release\":\"%s\",\"versions\":", id), text, fixed = TRUE), path, eos = NULL)
}
