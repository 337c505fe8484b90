"""Run one arm of a trial in its own process."""
