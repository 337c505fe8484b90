"""Run a user's program, pass its output on at once, and leave no process behind."""
