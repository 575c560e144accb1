"""For `mechanisms.table_package`: tables from one budget: workload, measurements and posterior (docs/methods.md, §9c)."""
