"""Record layout decisions in an append-only chain of events."""
