"""Handle operators whose fake tensors predict other strides than their kernels produce."""
