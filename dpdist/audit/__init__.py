"""For the privacy officer, by `cli.trials`: record losses, lower bounds on ε, and attacks. Results are confidential."""
