"""Plans a run from public facts, before any budget is spent: its checks, its strata and tasks, and its noise."""
