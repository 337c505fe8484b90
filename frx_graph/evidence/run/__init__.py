"""What was recorded of a run: the events that the program wrote, samples of devices, and the bundle that holds them."""
