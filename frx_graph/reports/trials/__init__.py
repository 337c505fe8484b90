"""Render trials and tuning results."""
