"""Analyse single kernels: the limit of each, and the advice that follows."""
