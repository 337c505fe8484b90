"""What of a captured graph travels to another process: its nodes, its tensors, and the state of torch around it."""
