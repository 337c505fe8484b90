"""Record a program's steps, waits and layouts, and write them in a thread."""
