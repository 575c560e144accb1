"""Schedules work: executors, tasks, journal, the scheduler's connections. It holds no statistics."""
