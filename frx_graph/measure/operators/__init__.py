"""Time operators and record the copies that they make."""
