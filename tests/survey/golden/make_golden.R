# Golden figures of tests/survey/test_golden.py from R's package `survey` (Debian: r-cran-survey, r-cran-mass).
#   python make_csv.py DATA CSV
#   Rscript make_golden.R CSV golden.csv
# CSV is a folder of the survey files as text. Only figures are written, no record.
suppressMessages(library(survey))
options(warn = -1) # quantiles in domains without degrees of freedom are NaN
args <- commandArgs(trailingOnly = TRUE)
rows <- list()
keep <- function(case, statistic, domain, value, se, df)
  rows[[length(rows) + 1]] <<- data.frame(case, statistic, domain, value = sprintf("%.17g", value),
                                          se = sprintf("%.17g", se), df = sprintf("%.17g", df))
figures <- function(case, design, y, z = NULL, by = NULL, count = TRUE, quantiles = c(.25, .5)) {
  groups <- if (is.null(by)) list(Total = TRUE) else c(list(Total = TRUE),
    setNames(lapply(sort(unique(as.character(design$variables[[by]]))), identity), sort(unique(as.character(design$variables[[by]])))))
  design <- update(design, one = 1)
  for (name in names(groups)) {
    part <- if (name == "Total") design else design[as.character(design$variables[[by]]) == name, ]
    df <- degf(part)
    Y <- reformulate(y)
    if (count) {
      s <- svytotal(~one, part); keep(case, "count", name, coef(s), SE(s), df)
      s <- svytotal(Y, part); keep(case, "total", name, coef(s), SE(s), df)
    }
    s <- svymean(Y, part); keep(case, "mean", name, coef(s), SE(s), df)
    if (!is.null(z)) { s <- svyratio(Y, reformulate(z), part); keep(case, "ratio", name, coef(s), SE(s), df) }
    for (p in quantiles) {
      s <- svyquantile(Y, part, p); keep(case, paste0("quantile ", p), name, coef(s), SE(s), df)
    }
  }
}

# the small survey that the test makes by the same arithmetic
i <- 0:119
small <- data.frame(y = ((i * 37) %% 101) / 7 + 1, z = ((i * 53) %% 89) / 5 + 2, w = 1 + ((i * 13) %% 17) / 3,
                    h = i %% 5, p = (i %/% 5) %% 4, d = (i * 7) %% 3)
small$N <- 9 + small$h
small$M <- 20 + small$p
small$id <- i
one <- subset(small, !(h == 4 & p > 0))
figures("psu", svydesign(~p, strata = ~h, weights = ~w, nest = TRUE, data = small), "y", "z", "d")
figures("records", svydesign(~1, strata = ~h, weights = ~w, data = small), "y", "z", "d")
figures("psu fpc", svydesign(~p, strata = ~h, weights = ~w, fpc = ~N, nest = TRUE, data = small), "y", "z", "d")
figures("two stages", svydesign(~p + id, strata = ~h, weights = ~w, fpc = ~N + M, nest = TRUE, data = small), "y", "z", "d")
for (rule in c("certainty", "average", "adjust")) {
  options(survey.lonely.psu = rule)
  figures(paste("lonely", rule), svydesign(~p, strata = ~h, weights = ~w, nest = TRUE, data = one), "y", "z", "d",
          count = rule != "adjust", quantiles = .5)
}
options(survey.lonely.psu = "fail")
again <- sapply(1:12, function(r) small$w * (1 + .5 * (((i * i + 3 * i * r * r + 7 * r) %% 13) / 6 - 1)))
replicated <- function(type, mse, ...)
  svrepdesign(weights = ~w, repweights = again, combined.weights = TRUE, type = type, mse = mse, data = small, ...)
figures("brr", replicated("BRR", TRUE), "y", "z", "d")
figures("fay", replicated("Fay", TRUE, rho = .3), "y", "z", "d")
figures("jackknife", replicated("JK1", TRUE, scale = 11 / 12), "y", "z", "d")
figures("jackknife strata", replicated("JKn", FALSE, scale = 1, rscales = rep(c(1 / 2, 2 / 3, 3 / 4), 4)), "y", "z", "d")
figures("bootstrap", replicated("bootstrap", FALSE, scale = 1 / 12, rscales = rep(1, 12)), "y", "z", "d")
figures("successive difference", replicated("successive-difference", TRUE), "y", "z", "d")

small$e <- (i * 11) %% 4
small$g <- (i * 3) %% 7
raked <- calibrate(svydesign(~1, strata = ~h, weights = ~w, data = small), ~factor(d) + factor(e), calfun = "raking",
                   population = c(`(Intercept)` = 420, `factor(d)1` = 140, `factor(d)2` = 130, `factor(e)1` = 110, `factor(e)2` = 100,
                                  `factor(e)3` = 120), maxit = 5000, epsilon = 1e-13)
figures("raked", raked, "y", by = "g", quantiles = numeric(0))

read <- function(name) read.csv(file.path(args[1], paste0(name, ".csv")), stringsAsFactors = FALSE)
nhanes <- subset(read("nhanes2015"), weight_exam > 0 & !is.na(bmi) & !is.na(height_cm))
figures("nhanes2015", svydesign(~psu, strata = ~stratum, weights = ~weight_exam, nest = TRUE, data = nhanes),
        "bmi", "height_cm", "age_group")
nhis <- subset(read("nhis2003"), !is.na(uninsured) & uninsured != "")
nhis$yes <- as.numeric(nhis$uninsured == "Yes")
stopifnot(sum(nhis$yes) > 100)
figures("nhis2003", svydesign(~psu, strata = ~stratum, weights = ~weight, nest = TRUE, data = nhis), "yes", by = "ethnicity",
        quantiles = numeric(0))
recs <- read("recs2015")
figures("recs2015", svrepdesign(weights = ~weight, repweights = recs[paste0("brr_", 1:96)], combined.weights = TRUE, type = "Fay",
        rho = .5, mse = TRUE, data = recs), "total_dollars", "total_kbtu", "division")
strat <- read("schools_apistrat")
figures("schools_apistrat", svydesign(~1, strata = ~school_type, weights = ~weight, fpc = ~fpc, data = strat), "api00", "api99", "awards")
clus <- read("schools_apiclus2")
clus$row <- seq_len(nrow(clus))
figures("schools_apiclus2", svydesign(~district + row, weights = ~weight, fpc = ~fpc1 + fpc2, data = clus), "api00", "api99", "awards")
write.csv(do.call(rbind, rows), args[2], row.names = FALSE, quote = FALSE)
