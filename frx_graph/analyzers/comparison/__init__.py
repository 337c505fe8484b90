"""Compare two implementations: what changed, and which is better."""
