"""Detect a barrier of the whole block that some threads skip: the others wait forever, or continue with half of the
data.

Certain if the condition, or a loop's iteration count, depends on `threadIdx` by arithmetic alone. Code after a
`continue` or `break` depends on its condition too. Silent after an early `return`: a barrier does not wait for threads
that have ended. Silent if loaded data decides, since it may be the same for all threads. Silent if the other arm has a
barrier too, or all threads of the launched blocks meet the condition alike.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from frx_graph.analyzers.cuda.finding import Occurrence, find_launches
from frx_graph.analyzers.cuda.launch_advice import MOST_THREADS
from frx_graph.evidence.cuda.concrete import Test, Threads, Worth, expand_threads
from frx_graph.evidence.cuda.polynomial import make_symbol
from frx_graph.evidence.cuda.source import BarrierKind, Condition, CudaSource, Kernel, Launch


def detect(source: CudaSource) -> Iterator[Occurrence]:
    """Yield one occurrence per barrier."""
    for kernel in source.kernels:
        blocks = [one for one in kernel.barriers if one.kind is BarrierKind.BLOCK]
        waiting = {arm for one in blocks for arm in one.step.arms}
        for barrier in blocks:
            # The other arm has a barrier too: the hardware counts threads, not the places where they wait.
            if any((branch, 1 - arm) in waiting for branch, arm in barrier.step.arms):
                continue
            for one in barrier.step.conditions:
                if one.thread and not one.data and not one.early and not _holds_for_block(source, kernel, one):
                    said = f"`{barrier.text}` is below `{one.text}`, which differs between threads of a block"
                    yield Occurrence(kernel.name, barrier.step.line, said)
                    break


def _holds_for_block(source: CudaSource, kernel: Kernel, condition: Condition) -> bool:
    """Return True if the condition is the same for all threads of the blocks that the file launches."""
    launches = find_launches(source, kernel)
    return bool(launches) and all(_holds_in_launch(kernel, launch, condition) for launch in launches)


def _holds_in_launch(kernel: Kernel, launch: Launch, condition: Condition) -> bool:
    sizes = launch.block.sizes
    if not any(axis in condition.varies and size != 1 for axis, size in zip("xyz", sizes, strict=True)):
        return True
    # `threadIdx.x < 256`, with blocks that are no wider.
    if sizes[0] is not None and condition.width is not None:
        return sizes[0] <= condition.width
    return _is_alike_when_tried(kernel, launch, condition) or _is_limited_by_block(kernel, launch, condition)


def _is_alike_when_tried(kernel: Kernel, launch: Launch, condition: Condition) -> bool:
    """Return True if the condition is the same for each thread of a block of known size."""
    sizes = [size for size in launch.block.sizes if size is not None]
    if len(sizes) < len(launch.block.sizes) or not 0 < math.prod(sizes) <= MOST_THREADS:
        return False
    # Later iterations may differ.
    if condition.tests is None or any(one.startswith("loop:") for one in condition.varies):
        return False
    z, y, x = zip(*itertools.product(*map(range, reversed(sizes))), strict=True)
    place: dict[str, Worth] = {f"blockDim.{axis}": size for axis, size in zip("xyz", sizes, strict=True)}
    place |= {"threadIdx.x": x, "threadIdx.y": y, "threadIdx.z": z}
    threads = Threads(place, kernel.made, kernel.turns, frozenset(), lambda _symbol: None)
    truth = set(expand_threads(threads.check(condition.tests), len(x)))
    return len(truth) == 1 and None not in truth


def _is_limited_by_block(kernel: Kernel, launch: Launch, condition: Condition) -> bool:
    """Return True for `place < n` with `k<<<1, n>>>(n)`."""
    tests = condition.tests
    if not isinstance(tests, Test) or tests.sign != "<":
        return False
    place = make_symbol("threadIdx.x")
    if launch.grid.count == 1:
        place += make_symbol("blockIdx.x") * make_symbol("blockDim.x")
    limits = (place - tests.difference, make_symbol("threadIdx.x") - tests.difference)
    passed = zip(kernel.parameters, launch.arguments, strict=False)
    return any(text == launch.block.text and make_symbol(one.name) in limits for one, text in passed)
