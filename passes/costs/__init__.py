"""Bytes and FLOPs of operators, and where they stand under the roofline."""
