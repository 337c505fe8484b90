"""Run a user's program so that none of its processes is left behind, and its output passes at once."""
