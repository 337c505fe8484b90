"""Count bytes and FLOPs of operators, and place them under the roofline."""
