"""Analyse the record of a run: its step times from batch to batch, and its bottlenecks."""
