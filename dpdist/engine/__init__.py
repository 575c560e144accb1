"""How rounds run, wherever they run: what a mechanism asks for, and who answers."""
