"""Privacy mechanisms, a folder each, with the parts that they share and their registry.

In docstrings METHODS is docs/methods.md, and letters in brackets, such as [G], name papers of docs/bibliography.md.
"""
