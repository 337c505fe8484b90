"""Fusion of operators into shared kernels, and what prevents it."""
