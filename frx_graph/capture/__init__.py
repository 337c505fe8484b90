"""Capture the graphs of a program: what is compiled, its source lines, and what could not be captured."""
