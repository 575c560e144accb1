# Medians, quantiles, a ratio and a share of tests/field/test_further_stats.py, from R's package `survey` (4.1 or later).
#   Rscript quantiles.R DESIGN DATA.csv
suppressMessages(library(survey))
args <- commandArgs(trailingOnly = TRUE)
d <- read.csv(args[2])
again <- paste0("rw", 1:40)
design <- switch(args[1],
  psu = svydesign(~psu, strata = ~stratum, weights = ~weight, data = d, nest = TRUE),
  strata = svydesign(~1, strata = ~stratum, weights = ~weight, data = d),
  fpc = svydesign(~psu, strata = ~stratum, weights = ~weight, fpc = ~psus, data = d, nest = TRUE),
  stages = svydesign(~psu + row, strata = ~stratum, weights = ~weight, fpc = ~psus + size, data = d, nest = TRUE),
  bootstrap = svrepdesign(weights = ~weight, repweights = d[again], type = "bootstrap", mse = TRUE, combined.weights = TRUE,
                          scale = 1 / 40, rscales = rep(1, 40), data = d),
  fay = svrepdesign(weights = ~weight, repweights = d[again], type = "Fay", rho = .5, mse = TRUE, combined.weights = TRUE,
                    data = d))
show <- function(statistic, cell, s, part) cat(statistic, cell, sprintf("%.12g", c(coef(s), SE(s), degf(part))), "\n")
for (cell in c("n f", "n m", "s f", "s m", "Total Total")) {
  part <- if (cell == "Total Total") design else design[paste(d$region, d$sex) == cell, ]
  for (p in c(.1, .5, .9)) show(paste("quantile", p), cell, svyquantile(~income, part, p), part)
  show("quantile 0.5 (heaped)", cell, svyquantile(~heaped, part, .5), part)
  show("ratio", cell, svyratio(~income, ~hours, part), part)
}
