"""Facts about every value and operator of a captured graph."""
