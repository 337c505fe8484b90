"""Run a program, sample it, and write a bundle: `frx collect`."""
