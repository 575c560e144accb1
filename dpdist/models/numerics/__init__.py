"""Numerics that several models share."""
