"""Which operators can share a kernel, and what keeps them apart."""
