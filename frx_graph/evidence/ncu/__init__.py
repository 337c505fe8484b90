"""Readers of Nsight Compute's exports and reports."""
