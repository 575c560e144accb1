"""Confidential types. Publication, the public halves of mechanisms and the command line never import them."""
