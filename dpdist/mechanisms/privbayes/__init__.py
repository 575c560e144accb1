"""Mechanism `privbayes`: coded columns in a network that is chosen under noise, and noisy tables along it."""
