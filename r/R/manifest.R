# Checks a public folder against its manifest, and the manifest against a signature. Nothing is read before it is checked.

formats <- c(manifest = 1L, statement = 1L) # the latest that this package reads; absent in a file, it is 1
beside <- c("manifest.json", "manifest.json.minisig", "NOT_FOR_PUBLICATION.txt")
fetch_again <- "fetch the release again from whoever published it, and do not use this copy"

# The folder with manifest.json: `dir` itself, or `public` in a workspace.
public_folder <- function(dir) {
  if (!is.character(dir) || length(dir) != 1L || is.na(dir)) {
    fail("the folder must be given as one text", "give the path of a release, as \"wages-2023/public\"")
  }
  if (!dir.exists(dir)) {
    fail(sprintf("there is no folder '%s'", dir), "give the folder of a release: the one that has manifest.json")
  }
  for (folder in c(dir, file.path(dir, "public"))) {
    if (file.exists(file.path(folder, "manifest.json"))) {
      return(normalizePath(folder))
    }
  }
  fail(
    sprintf("'%s' is no release: it has no manifest.json", dir),
    "give the public folder of a release, or the workspace that `dpdist run` made"
  )
}

read_bytes <- function(path) readBin(path, "raw", file.size(path))

# The object in a JSON file of a release.
read_object <- function(folder, name) {
  parsed <- tryCatch(
    jsonlite::fromJSON(rawToChar(read_bytes(file.path(folder, name))), simplifyVector = FALSE),
    error = function(e) NULL
  )
  if (!is.list(parsed) || is.null(names(parsed))) {
    fail(sprintf("%s cannot be read: it is no JSON object", name), fetch_again)
  }
  parsed
}

refuse_format <- function(name, stated, newest) {
  if (is.null(stated)) {
    return(invisible())
  }
  whole <- is.numeric(stated) && length(stated) == 1L && stated >= 1 && stated == round(stated)
  if (!whole) {
    fail(sprintf("%s states a format that no version of dpdist writes", name), fetch_again)
  }
  if (stated > newest) {
    fail(
      sprintf("%s has format %d, and this package reads formats up to %d: a later dpdist wrote it", name, as.integer(stated), newest),
      "install a later version of the R package dpdist"
    )
  }
}

# The manifest of a folder whose files are all as they were released. Stops at any difference.
whole_manifest <- function(folder) {
  raw <- read_bytes(file.path(folder, "manifest.json"))
  manifest <- read_object(folder, "manifest.json")
  if (is.null(manifest$format)) {
    fail("manifest.json has no format: a dpdist before 0.1.1 made it", "open it with `dpdist report`, or publish it again")
  }
  refuse_format("manifest.json", manifest$format, formats[["manifest"]])
  refuse_another_id(raw, manifest$release)
  files <- manifest$files
  if (!is.list(files) || is.null(names(files))) {
    fail("manifest.json names no files", fetch_again)
  }
  differences <- c(
    unlist(lapply(names(files), function(name) difference(folder, name, files[[name]]))),
    unlist(lapply(
      setdiff(list.files(folder, recursive = TRUE, all.files = TRUE), c(names(files), beside)),
      function(name) sprintf("%s: manifest.json does not list it", name)
    ))
  )
  if (length(differences) > 0L) {
    more <- if (length(differences) > 1L) sprintf(", and %d more files differ", length(differences) - 1L) else ""
    fail(paste0(differences[[1L]], more), fetch_again)
  }
  manifest
}

# The id is the SHA-256 of the manifest without the id. The file is canonical JSON, so its bytes without the entry are enough.
refuse_another_id <- function(raw, id) {
  text <- rawToChar(raw)
  ok <- is.character(id) && grepl("^[0-9a-f]{64}$", id)
  rest <- if (ok) sub(sprintf(",\"release\":\"%s\"", id), "", text, fixed = TRUE) else text
  if (!ok || identical(rest, text) || hex(openssl::sha256(charToRaw(rest))) != id) {
    fail("manifest.json was changed: its release id does not follow from it", fetch_again)
  }
}

hex <- function(hash) paste(as.character(unclass(as.raw(hash))), collapse = "")

# A sentence on how a file differs from the manifest; NULL if it does not.
difference <- function(folder, name, digest) {
  parts <- strsplit(name, "/", fixed = TRUE)[[1L]]
  if (name == "" || startsWith(name, "/") || grepl("\\", name, fixed = TRUE) || any(parts %in% c("", ".", ".."))) {
    return(sprintf("manifest.json: the file name '%s' leads out of the folder", name))
  }
  path <- file.path(folder, name)
  if (!file.exists(path)) {
    return(sprintf("%s: it is missing", name))
  }
  links <- Sys.readlink(file.path(folder, Reduce(file.path, parts, accumulate = TRUE)))
  if (any(nzchar(links) & !is.na(links))) {
    return(sprintf("%s: a symbolic link leads to it", name))
  }
  if (hex(openssl::sha256(read_bytes(path))) != digest) {
    return(sprintf("%s: it was changed since the release", name))
  }
  NULL
}

# Stops unless the manifest is signed by the key: the text of a minisign public key, or the file of one.
refuse_unsigned <- function(folder, key) {
  lines <- if (length(key) == 1L && file.exists(key)) readLines(key, warn = FALSE) else as.character(key)
  lines <- trimws(lines[nzchar(trimws(lines))])
  public <- if (length(lines) > 0L) decoded(lines[[length(lines)]], 42L) else NULL
  if (is.null(public) || rawToChar(public[1:2]) != "Ed") {
    fail("`key` is no public key of minisign's", "give the .pub file that the agency publishes, or its second line")
  }
  path <- file.path(folder, "manifest.json.minisig")
  if (!file.exists(path)) {
    fail("the release is not signed: it has no manifest.json.minisig", "ask the agency for the signature, or open it without `key`")
  }
  parts <- readLines(path, warn = FALSE, encoding = "UTF-8")
  signature <- if (length(parts) >= 4L) decoded(parts[[2L]], 74L) else NULL
  whole <- if (length(parts) >= 4L) decoded(parts[[4L]], 64L) else NULL
  kind <- if (is.null(signature)) "" else rawToChar(signature[1:2])
  if (is.null(whole) || !kind %in% c("Ed", "ED") || !startsWith(parts[[3L]], "trusted comment: ")) {
    fail("manifest.json.minisig is no signature of minisign's", fetch_again)
  }
  if (!identical(signature[3:10], public[3:10])) {
    fail("the release is signed by another key than the one given", "take the key of whoever should have signed")
  }
  bytes <- read_bytes(file.path(folder, "manifest.json"))
  signed <- if (kind == "Ed") bytes else as.raw(openssl::blake2b(bytes))
  comment <- charToRaw(enc2utf8(sub("trusted comment: ", "", parts[[3L]], fixed = TRUE)))
  point <- openssl::read_ed25519_pubkey(public[11:42])
  valid <- function(data, of) isTRUE(tryCatch(openssl::ed25519_verify(data, of, point), error = function(e) FALSE))
  if (!valid(signed, signature[11:74]) || !valid(c(signature[11:74], comment), whole)) {
    fail("the signature is not of this release", "do not trust the folder: ask who signed it")
  }
}

decoded <- function(text, size) {
  raw <- tryCatch(openssl::base64_decode(text), error = function(e) raw())
  if (length(raw) == size && openssl::base64_encode(raw) == text) raw else NULL
}
