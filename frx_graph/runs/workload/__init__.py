"""Somebody else's program, run so that nothing of it is left behind, and its output comes through at once."""
