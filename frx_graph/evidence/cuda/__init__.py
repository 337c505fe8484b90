"""CUDA source: what kernels do in memory, thread by thread, before anything is compiled."""
