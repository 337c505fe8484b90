"""Record a run with one line of code, in frameworks with their own training loop."""
