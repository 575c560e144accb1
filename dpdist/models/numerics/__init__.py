"""Numerical routines that several models share: χ quantiles, grids of a posterior, tiles of log densities."""
