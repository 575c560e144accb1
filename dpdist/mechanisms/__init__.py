"""Privacy mechanisms, one folder for each, with what they share and the registry of those that a job may name.

In docstrings METHODS is docs/methods.md, and letters in brackets, such as [G], name papers of docs/bibliography.md.
"""
