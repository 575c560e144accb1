"""Schedules work for `release`: executors, tasks, journal, scheduler. It holds no statistics."""
