"""The likelihood model of every family.

A family is the law that a job names for its outcome, such as `lognormal`. Each has one file or folder here. In docstrings
METHODS is docs/methods.md, and letters in brackets, such as [G], name papers of docs/bibliography.md.
"""
