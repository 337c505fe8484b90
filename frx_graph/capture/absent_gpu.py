"""Say that what is captured is for a GPU that is not here: nothing is run on a device, also where there is one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor

from frx_graph.support.torch_internals import allow_gpu_autocast, compile_lock


@dataclass(frozen=True, slots=True)
class AbsentGpu:
    """The rules of a GPU that torch asks the device for. `plain_convolutions`: they return plain images, whatever they
    read, as MIOpen's do."""

    plain_convolutions: bool = False


_ABSENT: ContextVar[AbsentGpu | None] = ContextVar("frx_absent_gpu", default=None)


@contextlib.contextmanager
def capture_for(gpu: AbsentGpu) -> Iterator[None]:
    """Capture for this GPU. Other threads compile nothing meanwhile, since autocast is patched for all."""
    with compile_lock, torch.device("cuda"), allow_gpu_autocast():
        token = _ABSENT.set(gpu)
        try:
            yield
        finally:
            _ABSENT.reset(token)


def get_absent_gpu() -> AbsentGpu | None:
    """Return the GPU that is captured for; None: the devices of this machine."""
    return _ABSENT.get()


def are_on_absent_gpu(tensors: Iterable[Tensor]) -> bool:
    """Return True if one of the tensors is on a GPU that is not here."""
    return _ABSENT.get() is not None and any(tensor.device.type == "cuda" for tensor in tensors)
