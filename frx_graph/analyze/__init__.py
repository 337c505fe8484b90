"""Analyse one evidence file or run: one entry point for each kind of file."""
