"""Define what detectors of CUDA source find, and share their helpers."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from frx_graph.evidence.cuda.source import Access, CudaSource, Event, Kernel, Launch, Product, Space
from frx_graph.rules.gpu_profile import GpuProfile, SmLimits, load_architectures

_TENSOR = ("wmma", "mma", "asm", "tcgen05", "cute::", "cutlass")


def find_matrix_products(kernel: Kernel) -> Iterator[Product]:
    """Yield sums of products in which a whole row or column of threads uses each factor. Both factors advance with the
    same loop, and are in the same kind of memory. There are none in a kernel that uses tensor cores."""
    for event in kernel.events if not uses_tensor_cores(kernel) else ():
        if not isinstance(event, Product) or event.left.space is not event.right.space:
            continue
        left, right = event.left, event.right
        loops = {symbol for symbol in left.offset.iterate_symbols() if symbol.startswith("loop:")}
        if (
            left.space in (Space.GLOBAL, Space.SHARED)
            and not loops.isdisjoint(right.offset.iterate_symbols())
            and {"x", "y"} == {_find_axis(left), _find_axis(right)}
        ):
            yield event


def uses_tensor_cores(kernel: Kernel) -> bool:
    """Return True for tensor core calls, and for inline assembly, which may use them."""
    return any(word in call.name for call in kernel.calls for word in _TENSOR) or any(
        "mma" in name for name in kernel.read
    )


def _find_axis(access: Access) -> str | None:
    """Return the only axis of threads along which the element changes; None if data choose it."""
    axes = access.varies & {"x", "y", "data"}
    return next(iter(axes)) if len(axes) == 1 else None


@functools.lru_cache
def list_target_limits(gpu: GpuProfile | None) -> Mapping[str, SmLimits]:
    """Return limits by GPU name, or by compute capability in order. Empty for a GPU without CUDA."""
    if gpu is not None:
        return {} if gpu.architecture.limits is None else {gpu.name: gpu.architecture.limits}
    cards = load_architectures().values()
    known = {card.architecture: card.limits for card in cards if card.limits is not None}
    return {name: known[name] for name in sorted(known, key=lambda one: int(one.removeprefix("sm_")))}


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A place in a kernel; `seen` describes it in a sentence."""

    kernel: str
    line: int
    seen: str
    access: Access | None = None


def group_by_loop(events: Iterable[Event]) -> Mapping[int, Sequence[Event]]:
    """Group events by the number of each loop around them, in order; inner loops included."""
    inside: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        for number in event.step.loops:
            inside[number].append(event)
    return inside


def find_launches(source: CudaSource, kernel: Kernel) -> tuple[Launch, ...]:
    """Return the launches of a kernel in its own file."""
    name = kernel.name.split("<", 1)[0].rsplit("::", 1)[-1]
    return source.launches_by_name.get(name, ())
