"""Prices of whole programs: the seconds that one run of a graph takes under an inner compiler, from measured calls."""
