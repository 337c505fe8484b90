"""Read a recorded run: its events, samples of devices, and the bundle that holds them."""
