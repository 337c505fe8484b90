"""Observe and time what Inductor generates."""
