"""Write graphs, tensors and torch settings to files and read them back."""
