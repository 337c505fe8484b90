"""Summarise the findings of thousands of runs: find their bundles, read each into rows, and add them up with SQL."""
