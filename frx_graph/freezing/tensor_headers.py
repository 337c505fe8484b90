"""Whether tensors have other memory than before, see it otherwise, or have been written into as autograd counts it.

Why: asked one by one, `data_ptr()` and `_version` take 0.15 microseconds a tensor, some of it waiting for memory, and
frozen programs ask in every call. How: a `Tensor` of Python's points to a `c10::TensorImpl`, that to a storage and to a
counter of writes; these pointers, the storage's address, the count, sizes, strides, and the like are words of eight
bytes, which are read for all tensors at once. Where in their objects they lie is found out once in a process, by
looking for values that are known and that are made to change (`_layout`). Assumes: CPython, whose `id` is an address;
where the words are not found, as in a torch that is built otherwise, tensors are asked one by one.
Safe: a word is read through a pointer only after that pointer has been read and is what it was, so that what it
points to, which its owner keeps, is still there.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from frx_graph.freezing.process_memory import gather, word_at

_WORD = 8
_IMPL_WORDS = 22
"""Of a `c10::TensorImpl`: all (torch 2.13 and 2.15)."""
_INLINE = 5
"""For so many dimensions a `c10::impl::SizesAndStrides` has room: their number, the sizes, the strides. In the place of
the first size of more it has a pointer to all of them."""
_DTYPE = 0xFFFF
"""A `caffe2::TypeMeta` is the lowest two bytes of its word, some of whose others are set by nobody."""
_STORAGE_WORDS = 6
_COUNTER_WORDS = 3
"""Of a `c10::VariableVersion::VersionCounter`: its functions, its references, the count."""
_OBJECT_WORDS = 4
"""Of a `THPVariable`: `PyObject`, and whether it owns the pointer that follows."""
_SMALLEST_ADDRESS = 1 << 16
_PROBES = 4


@dataclass(frozen=True, slots=True)
class _Layout:
    """Places in words: of the implementation in Python's object; of storage, offset, counter, sizes and strides, dtype,
    and the keys that tell of conjugated and negated views in the implementation; of the address in the storage; and of
    the count in the counter."""

    implementation: int
    storage: int
    offset: int
    counter: int
    sizes: int
    dtype: int
    keys: int
    address: int
    count: int

    def words(self, dimensions: int) -> list[int]:
        """Those of an implementation that are looked at."""
        first = self.sizes + 1
        sizes = [first, *range(first + 1, first + dimensions), *range(first + _INLINE, first + _INLINE + dimensions)]
        if dimensions == 0 or dimensions > _INLINE:
            sizes = [first][:dimensions]
        return [self.storage, self.offset, self.counter, self.dtype, self.keys, self.sizes, *sizes]


class TensorHeaders:
    """Remembers where some tensors, plain strided ones, lie in memory, how they see it, and how often they have been
    written into. They are kept alive, with the storages that they have now. Raises `ValueError` for those that count no
    writes."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        if any(tensor.is_inference() for tensor in tensors):
            raise ValueError("tensors made in inference mode count no writes")
        self._tensors = list(tensors)
        self._storages = [tensor.untyped_storage() for tensor in tensors]
        layout = _layout()
        self._asked = self._ask() if layout is None else None
        self._seen = [] if layout is None else [(read, read()) for read in self._reads(layout)]

    def unchanged(self) -> bool:
        """True if every tensor has the memory that it had and sees it as it did, and nobody has written into it."""
        return all(read() == seen for read, seen in self._seen) if self._asked is None else self._ask() == self._asked

    def _reads(self, layout: _Layout) -> list[Callable[[], bytes]]:
        """Each may be made if those before it have given what they gave first."""
        implementations = [tensor._cdata for tensor in self._tensors]
        counters = [word_at(start + layout.counter * _WORD) for start in implementations]
        places = (
            [id(tensor) + layout.implementation * _WORD for tensor in self._tensors],
            [
                start + word * _WORD
                for start, tensor in zip(implementations, self._tensors, strict=True)
                for word in layout.words(tensor.dim())
            ],
            [
                *(storage._cdata + layout.address * _WORD for storage in self._storages),
                *(counter + layout.count * _WORD for counter in counters),
                *(
                    word_at(start + (layout.sizes + 1) * _WORD) + i * _WORD
                    for start, tensor in zip(implementations, self._tensors, strict=True)
                    if tensor.dim() > _INLINE
                    for i in range(2 * tensor.dim())
                ),
            ],
        )
        return [gather(addresses, _WORD) for addresses in places]

    def _ask(self) -> list[list[object]]:
        return [list(map(question, self._tensors)) for question in _QUESTIONS]


_QUESTIONS: tuple[Callable[[Tensor], object], ...] = (
    Tensor.data_ptr,
    operator.attrgetter("_version"),
    operator.attrgetter("shape"),
    Tensor.stride,
    operator.attrgetter("dtype"),
    Tensor.is_conj,
    Tensor.is_neg,
)


@cache
def _layout() -> _Layout | None:
    """None where a place is not found, or more than one could be it."""
    with _disable_current_modes(), torch.inference_mode(mode=False), torch.no_grad(), torch.device("cpu"):
        # Of five dimensions, for which there is room in the implementation: of fewer some words mean nothing.
        probe, *others = (torch.zeros(64).as_strided(_SHAPE, _STRIDES, 37 + i) for i in range(_PROBES))
        aliases = [probe.detach() for _ in range(_PROBES)]
        otherwise = probe.view(torch.int32)
        storage = probe.untyped_storage()
        offsets = tuple(tensor.storage_offset() for tensor in (probe, *others))
        words = _words(probe._cdata, _IMPL_WORDS)
        same, different = ([_words(t._cdata, _IMPL_WORDS) for t in found] for found in (aliases, others))
        counter = _only(
            i
            for i, word in enumerate(words)
            # Aliases count together, and share nothing else but their storage.
            if word > _SMALLEST_ADDRESS
            and word != storage._cdata
            and all(alias[i] == word for alias in same)
            and len({word, *(other[i] for other in different)}) == _PROBES
        )
        if counter is None:
            return None
        before = _words(words[counter], _COUNTER_WORDS)
        probe.add_(0)
        after = _words(words[counter], _COUNTER_WORDS)
        found = (
            _first(_words(id(probe), _OBJECT_WORDS), probe._cdata),
            _only(i for i, word in enumerate(words) if word == storage._cdata),
            _only(i for i, each in enumerate(zip(words, *different, strict=True)) if each == offsets),
            counter,
            _sizes(words),
            _differing([words, *same], _words(otherwise._cdata, _IMPL_WORDS), _DTYPE),
            _keys(),
            _first(_words(storage._cdata, _STORAGE_WORDS), storage.data_ptr()),
            _only(i for i in range(_COUNTER_WORDS) if after[i] == before[i] + 1),
        )
    known = [place for place in found if place is not None]
    return _Layout(*known) if len(known) == len(found) else None


_SHAPE, _STRIDES = (1, 1, 1, 3, 5), (15, 15, 15, 5, 1)


def _sizes(words: Sequence[int]) -> int | None:
    """Where the number of dimensions lies, with sizes and strides behind it, or a pointer to them."""
    looked_for = [_INLINE, *_SHAPE, *_STRIDES]
    place = _only(i for i in range(_IMPL_WORDS) if list(words[i : i + len(looked_for)]) == looked_for)
    if place is None:
        return None
    more = torch.zeros(64).as_strided((1, *_SHAPE), (2, *_STRIDES))
    dimensions, pointer = _words(more._cdata + place * _WORD, 2)
    if dimensions != more.dim() or pointer <= _SMALLEST_ADDRESS:
        return None
    return place if _words(pointer, 2 * more.dim()) == [*more.shape, *more.stride()] else None


def _keys() -> int | None:
    """Where negated and conjugated views differ from others."""
    probe = torch.zeros(8, dtype=torch.complex64)
    # Views have something of autograd's that what is detached has not.
    alike = [_words(tensor._cdata, _IMPL_WORDS) for tensor in (probe, probe.detach(), probe.view(8), probe.view(8))]
    views = [_words(view._cdata, _IMPL_WORDS) for view in (torch._neg_view(probe), probe.conj())]
    places = {_differing(alike, words, -1) for words in views}
    return places.pop() if len(places) == 1 else None


def _differing(alike: Sequence[Sequence[int]], other: Sequence[int], mask: int) -> int | None:
    """The only word that is the same in tensors that are alike, and in `other` is not."""
    found = (i for i, words in enumerate(zip(*alike, strict=True)) if len({word & mask for word in words}) == 1)
    return _only(i for i in found if alike[0][i] & mask != other[i] & mask)


def _words(address: int, count: int) -> list[int]:
    return [word_at(address + i * _WORD) for i in range(count)]


def _only(places: Iterable[int]) -> int | None:
    found = list(places)
    return found[0] if len(found) == 1 else None


def _first(words: Sequence[int], value: int) -> int | None:
    return words.index(value) if value in words else None
