"""Analyse single kernels: the limit that each has reached, and what to do about it."""
