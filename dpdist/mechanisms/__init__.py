"""Privacy mechanisms, a folder each, with what they share and the registry from which `runtime` and `planning` take them.

In docstrings METHODS is docs/methods.md, and letters in brackets, such as [G], name papers of docs/bibliography.md.
"""
