"""Processes that this one starts: each leads its own session and is ended with all that is left in it."""
