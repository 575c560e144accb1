"""Measures how similar two files of records are, weighted or not: for published microdata and for studies.

Comparisons with confidential records are confidential.
"""
