"""What was decided about layouts, when, by whom and on what evidence: an append-only chain of events."""
