"""Rewrite one graph and hand it to the inner compiler."""
