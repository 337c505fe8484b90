"""What the record of a run says: its steps, what held them back, and what changed between them."""
