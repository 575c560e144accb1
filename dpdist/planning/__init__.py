"""Plans of runs from public facts, before any budget is spent: checks, strata, tasks, expected noise."""
