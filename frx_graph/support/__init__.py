"""Write files atomically, end processes, warn users, pause the garbage collector."""
