"""The type of confidential records. Publication, public halves of mechanisms and the command line never import it."""
