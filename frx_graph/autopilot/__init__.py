"""Choose candidates, try them, and record the outcome."""
