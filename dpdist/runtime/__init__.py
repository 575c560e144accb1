"""Scheduling of work, without statistics: executors, tasks, journal, scheduler."""
