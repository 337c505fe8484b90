"""The functions by which a program records its steps, waits and layouts, and the thread that writes them."""
