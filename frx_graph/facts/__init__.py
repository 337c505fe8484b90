"""What is true of every value and operator of a captured graph."""
