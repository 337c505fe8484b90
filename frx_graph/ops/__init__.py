"""Register custom operators with `torch.library`."""
