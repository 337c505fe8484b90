"""Whether a failure is one of lacking memory: torch has an exception for that on devices alone."""

from __future__ import annotations

import torch

_SAID = ("DefaultCPUAllocator: ", "out of memory", "std::bad_alloc", "_STATUS_ALLOC_FAILED")
"""By torch's allocator for the CPU (`c10/core/impl/alloc_cpu.cpp`), by drivers, C++, and the libraries of CUDA."""


def out_of_memory(error: BaseException) -> bool:
    """Whether memory did not suffice, of the processor or of a device."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(said in str(error) for said in _SAID)
