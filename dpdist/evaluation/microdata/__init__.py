"""How alike two files of records are, weighted or not: confidential measures of published microdata."""
