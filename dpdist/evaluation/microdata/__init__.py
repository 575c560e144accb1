"""Measures of similarity between two files of records, weighted or not, for published microdata.

Results are confidential.
"""
