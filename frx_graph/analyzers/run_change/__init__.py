"""Compare two records of a program: what changed, by how much, and beyond which noise."""
