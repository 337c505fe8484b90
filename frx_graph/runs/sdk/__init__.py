"""What a program calls to tell of its run: its steps, waits and layouts; and the thread that writes them."""
