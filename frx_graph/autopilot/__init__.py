"""Choose what to try and record the outcome."""
