"""`frx tune`: which configuration makes a training script fastest, proved by trials of the whole script."""
