"""Run one arm of a trial in a process of its own."""
