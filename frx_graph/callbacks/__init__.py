"""Callbacks that tell of a run in one line, for frameworks that have their own loop over the steps."""
