"""Tables by difference measurement: noisy sums of residuals from a public prediction, and one posterior for all cells."""
