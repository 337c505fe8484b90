"""frx-graph: finds where a PyTorch model fights its own memory layout."""
