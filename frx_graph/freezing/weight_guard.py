"""Tells whether a module's weights are still what they were when something was made of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from frx_graph.freezing.process_memory import Addresses, gather
from frx_graph.freezing.tensor_headers import TensorHeaders

_SAMPLES = 4
"""Elements looked at in each tensor. What rewrites a tensor changes nearly all of them; see `WeightWatch`."""


class WeightWatch:
    """Remembers a module's parameters and buffers.

    Noticed are other memory (`p.data = ...`), the same memory seen otherwise (`p.data = p.data.t()`), and every write
    that autograd counts (in-place operators, optimizers, `load_state_dict`). Writes through `.data` are not counted by
    anybody: they are noticed if they change one of four elements spread over a tensor, or its like in any other tensor,
    as a write to whole tensors does. Another tensor in a parameter's or buffer's place is for Dynamo's guards to
    notice; `replaced` looks for it, too. Counts of batches, which no output depends on without gradients, are not
    watched.

    A check takes some 0.2 microseconds a tensor on a CPU after the model has run, and 0.02 where everything is in the
    caches (384 tensors). Raises `ValueError` for tensors made in inference mode, which count no writes, and for
    what is not dense memory: other layouts, wrappers of tensors, tensors without values.
    """

    def __init__(self, module: nn.Module) -> None:
        self._places = list(_places(module))
        self._tensors = [place[name] for place, name in self._places]
        if not all(map(_is_plain, self._tensors)):
            raise ValueError("the module holds tensors that are no plain ones")
        self._identities = frozenset(map(id, self._tensors))
        self._headers = TensorHeaders(self._tensors)
        filled = [tensor for tensor in self._tensors if tensor.numel() > 0]
        here = [tensor for tensor in filled if tensor.device.type == "cpu"]
        self._readers = list(_readers_of_memory(here))
        self._readers.extend(_reader_on_device(group) for group in _groups(filled))
        self._seen = [read() for read in self._readers]

    def unchanged(self) -> bool:
        """True if nothing was noticed."""
        # The samples are read from where the tensors were, and only if they are still there.
        return self._headers.unchanged() and self._seen == [read() for read in self._readers]

    def watches(self, tensor: Tensor) -> bool:
        """True for a tensor that would be noticed if it changed."""
        return id(tensor) in self._identities

    def replaced(self) -> bool:
        """True if a parameter or buffer has given way to another tensor."""
        return any(
            place.get(name) is not tensor for (place, name), tensor in zip(self._places, self._tensors, strict=True)
        )


def _is_plain(tensor: Tensor) -> bool:
    """False for what has no memory of its own to be read."""
    wraps = type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__
    return not (wraps or tensor.is_meta or tensor.layout is not torch.strided)


def _places(module: nn.Module) -> Iterator[tuple[dict[str, Any], str]]:
    """Where modules keep their tensors: replacing one of them changes the dictionary."""
    for part in module.modules():
        for place in (part._parameters, part._buffers):
            yield from (
                (place, name)
                for name, tensor in place.items()
                if tensor is not None and not (name == "num_batches_tracked" and isinstance(part, _NormBase))
            )


def _readers_of_memory(tensors: Sequence[Tensor]) -> Iterator[Callable[[], bytes]]:
    """Read samples of tensors in this process's memory, in as large pieces as where they lie allows."""
    places: dict[int, list[Addresses]] = {}
    for tensor in tensors:
        start, size = tensor.data_ptr(), tensor.element_size()
        unit = math.gcd(start, size, _LARGEST_UNIT)
        elements = np.array(_sampled_elements(tensor), dtype=np.int64)
        pieces = elements[:, None] * size + np.arange(0, size, unit)
        places.setdefault(unit, []).append(start + pieces.reshape(-1))
    return (gather(np.concatenate(found), unit) for unit, found in places.items())


_LARGEST_UNIT = 8


def _sampled_elements(tensor: Tensor) -> range:
    """Places of a few elements, spread over the tensor's memory."""
    extent = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    count = min(_SAMPLES, extent)
    step = max(1, (extent - 1) // max(1, count - 1))
    return range(0, count * step, step)


def _groups(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Those of other devices by device and type, as one operator can read them."""
    groups: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        if tensor.device.type != "cpu" and not tensor.is_complex():
            groups.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    return list(groups.values())


def _reader_on_device(tensors: Sequence[Tensor]) -> Callable[[], bytes]:
    views = []
    for tensor in tensors:
        places = _sampled_elements(tensor)
        views.append(tensor.detach().as_strided((len(places),), (places.step,)))
    return lambda: torch.cat(views).view(torch.uint8).cpu().numpy().tobytes()
