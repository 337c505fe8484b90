"""Analyse the record of a run: the time of its steps from batch to batch, and what holds it back."""
