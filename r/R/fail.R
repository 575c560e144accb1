# Every refusal of this package: what is wrong, and what to do. Scripts can catch the class "dpdist_error".
fail <- function(what, remedy) {
  text <- paste0(what, "\n  what to do: ", remedy)
  stop(structure(class = c("dpdist_error", "error", "condition"), list(message = text, call = NULL)))
}
