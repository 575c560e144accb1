"""Numerical routines that several models share."""
