"""Record a program's steps, collect a run into a bundle, and tune a run."""
