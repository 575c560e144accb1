"""Studies: what a study file says, its generators, one replicate, results, figures and the page."""
