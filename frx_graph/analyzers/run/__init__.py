"""What the record of a run says: how long its steps took from batch to batch, with what, and what holds it back."""
