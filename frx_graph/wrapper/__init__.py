"""Wrap `torch.compile` for `frx_graph.compile`."""
