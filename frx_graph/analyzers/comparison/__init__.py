"""Two implementations of the same thing beside each other: what changed, and which of them is better."""
