"""Processes that this one starts: each leads a session of its own and is ended with all that is left in it."""
