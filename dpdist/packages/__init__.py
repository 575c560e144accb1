"""For `mechanisms.table_package`: tables from one budget, by workload, measurements and posterior (docs/methods.md, §9c)."""
