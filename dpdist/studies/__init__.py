"""Studies: settings of a study file, data generators, replicates, results, figures and the page."""
