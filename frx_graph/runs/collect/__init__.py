"""`frx collect`: a program is run, sampled, and kept in a bundle."""
