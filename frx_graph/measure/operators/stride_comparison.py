"""Compare the strides of kernels with those of their fakes and decompositions."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from frx_graph.capture.stride_table import CallClass, classify_call
from frx_graph.facts.layout import compute_storage_extent, is_expanded
from frx_graph.measure.operators.contract_cases import make_representatives
from frx_graph.measure.operators.operator_database import OverloadCall
from frx_graph.support.torch_internals import FakeTensorMode, pytree, select_decomp_table

_VARIANTS = 48
"""Calls of one sample at most."""


@dataclass(frozen=True, slots=True)
class ComparedCall:
    """Strides, in elements, of a call's operands and results. `decomposed` is None if there is no decomposition."""

    target: str
    operands: tuple[tuple[int, ...], ...]
    kind: CallClass
    shapes: tuple[tuple[int, ...], ...]
    kernel: tuple[tuple[int, ...], ...]
    fake: tuple[tuple[int, ...], ...]
    decomposed: tuple[tuple[int, ...], ...] | None = None

    @property
    def agrees(self) -> bool:
        """True if the fake and the decomposition have the kernel's strides, but for dimensions of size 1."""
        return self._is_kernels(self.fake) and (self.decomposed is None or self._is_kernels(self.decomposed))

    def _is_kernels(self, strides: tuple[tuple[int, ...], ...]) -> bool:
        return len(strides) == len(self.kernel) and all(
            0 in shape or all(n == 1 or a == b for n, a, b in zip(shape, real, predicted, strict=True))
            for shape, real, predicted in zip(self.shapes, self.kernel, strides, strict=True)
        )


def compare_strides(
    calls: Iterable[OverloadCall], progress: Callable[[str], None] = lambda _target: None
) -> Iterator[ComparedCall]:
    """Yield each call, with operands in many strides. Calls that the kernel or the fake refuses are left out."""
    decompositions = select_decomp_table()
    for call in calls:
        progress(str(call.overload))
        for leaves in vary_strides(call.leaves):
            compared = _compare(call, leaves, decompositions)
            if compared is not None:
                yield compared


def summarize_comparison(compared: Iterable[ComparedCall]) -> dict[str, dict[CallClass, bool]]:
    """Return, by overload and class of calls, if all kernels made the strides of their fakes."""
    seen: dict[str, dict[CallClass, bool]] = {}
    for call in compared:
        classes = seen.setdefault(call.target, {})
        classes[call.kind] = classes.get(call.kind, True) and call.agrees
    return seen


def vary_strides(leaves: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield the leaves as they are, then with one tensor after the other in every class of strides, then with all
    tensors of a rank in the same one."""
    yield list(leaves)
    varied = [
        place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.dim() >= 2 and leaf.numel() > 0
    ]
    changes: list[Mapping[int, tuple[int, ...]]] = [
        {place: strides} for place in varied for strides in _list_strides(leaves[place])
    ]
    for rank in {leaves[place].dim() for place in varied}:
        alike = [place for place in varied if leaves[place].dim() == rank]
        if len(alike) > 1:
            orders = zip(*(_list_strides(leaves[place]) for place in alike), strict=False)
            changes.extend(dict(zip(alike, strides, strict=True)) for strides in orders)
    for change in itertools.islice(changes, _VARIANTS):
        yield [_store(leaf, change[place]) if place in change else leaf for place, leaf in enumerate(leaves)]


def _list_strides(value: Tensor) -> list[tuple[int, ...]]:
    found = [strides for _, strides in make_representatives(value.shape)]
    return [strides for strides in found if not is_expanded(value.shape, strides)]


def _store(value: Tensor, strides: tuple[int, ...]) -> Tensor:
    extent = compute_storage_extent(value.shape, strides)
    stored = torch.zeros(extent, dtype=value.dtype, device=value.device).as_strided(value.shape, strides)
    return stored.copy_(value)


def _compare(call: OverloadCall, leaves: list[Any], decompositions: Mapping[Any, Any]) -> ComparedCall | None:
    # Some operators refuse some strides, with any exception.
    try:
        with torch.no_grad(), torch.random.fork_rng(), warnings.catch_warnings(action="ignore"):
            kernel = call.run(leaves)
            mode = FakeTensorMode()
            with mode:
                fakes = pytree.tree_map_only(Tensor, mode.from_tensor, leaves)
                fake = call.run(fakes)
    except Exception:  # noqa: BLE001
        return None
    if _list_shapes(fake) != _list_shapes(kernel):
        return None
    operands = [(tuple(leaf.shape), tuple(leaf.stride())) for leaf in leaves if isinstance(leaf, Tensor)]
    return ComparedCall(
        target=str(call.overload),
        operands=tuple(strides for _, strides in operands),
        kind=classify_call(operands),
        shapes=_list_shapes(kernel),
        kernel=_list_result_strides(kernel),
        fake=_list_result_strides(fake),
        decomposed=_decompose(call, mode, fakes, decompositions),
    )


def _decompose(
    call: OverloadCall, mode: FakeTensorMode, fakes: list[Any], decompositions: Mapping[Any, Any]
) -> tuple[tuple[int, ...], ...] | None:
    decomposition = decompositions.get(call.overload)
    if decomposition is None:
        return None
    args, kwargs = pytree.tree_unflatten(fakes, call.spec)
    # A decomposition may leave the operator alone, or refuse strides with any exception.
    try:
        with torch.no_grad(), mode:
            result = decomposition(*args, **kwargs)
    except Exception:  # noqa: BLE001
        return None
    return None if result is NotImplemented else _list_result_strides(result)


def _list_tensors(result: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor) and leaf.layout is torch.strided]


def _list_shapes(result: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(value.shape) for value in _list_tensors(result))


def _list_result_strides(result: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(value.stride()) for value in _list_tensors(result))
