"""Read CUDA source: the memory accesses of kernels, thread by thread, without compiling them."""
