library(testthat)
library(dpdist)

test_check("dpdist")
