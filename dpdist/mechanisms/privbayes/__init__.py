"""Mechanism `privbayes`, on `coded_tables`: a network of coded columns chosen under noise, and noisy tables along it."""
