"""Assign a memory layout to every value of a graph and edit the graph accordingly."""
