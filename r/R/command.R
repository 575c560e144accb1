# The command line of dpdist: plans, runs, verifies. R sees no record of the confidential file.

dp_plan <- function(job, input = NULL, set = character()) {
  lines <- command(c("plan", job, options_of(input, set)))
  cat(lines, sep = "\n")
  invisible(lines)
}

dp_run <- function(job, workspace, input = NULL, set = character()) {
  command(c("run", job, "--workspace", workspace, "--quiet", options_of(input, set)), held = 4L)
  if (!file.exists(file.path(workspace, "public", "manifest.json"))) {
    fail("the run has made its release, and it is held", "let its custodian approve it: dpdist approve")
  }
  dp_open(workspace)
}

dp_verify <- function(dir, key = NULL) {
  folder <- public_folder(dir)
  lines <- command(c("verify", folder, "--json", if (!is.null(key)) c("--key", key)), held = 1L)
  if (length(lines) == 0L) {
    fail("dpdist verify printed nothing", "call `dpdist verify` in a shell, which shows why")
  }
  jsonlite::fromJSON(paste(lines, collapse = "\n"))
}

options_of <- function(input, set) {
  c(if (!is.null(input)) c("--input", input), unlist(lapply(set, function(one) c("--set", one))))
}

# Lines that dpdist prints. Stops with its own words where it fails; an exit code `held` is left to the caller.
command <- function(arguments, held = 0L) {
  program <- getOption("dpdist.command", "dpdist")
  if (!nzchar(Sys.which(program))) {
    fail(
      sprintf("the program '%s' is not there", program),
      "install it: pip install dpdist; or name it: options(dpdist.command = \"/path/to/dpdist\")"
    )
  }
  errors <- tempfile("dpdist-")
  on.exit(unlink(errors))
  # R's own search path for libraries may hold another Python's, which dpdist's must not load
  clean <- if (.Platform$OS.type == "unix") "LD_LIBRARY_PATH=" else character()
  lines <- suppressWarnings(system2(program, shQuote(arguments), stdout = TRUE, stderr = errors, env = clean))
  status <- attr(lines, "status")
  if (!is.null(status) && !status %in% c(0L, held)) {
    text <- readLines(errors, warn = FALSE, encoding = "UTF-8")
    fail(
      sprintf("dpdist %s ended with exit code %d\n%s", arguments[[1L]], status, paste(text, collapse = "\n")),
      "mend what it names, and give the same call again"
    )
  }
  as.character(lines)
}
