"""Predict the time that a kernel's memory accesses and barriers take for each result, from its source alone.

The figures are clock cycles of one multiprocessor for a warp. They are round assumptions, not measurements: global
memory delivers 16 bytes a cycle, and shared memory serves one turn of 32 words. They order two versions of one kernel,
and forecast no time. What the source does not show, such as the stride of an access that data choose, has a lowest and
a highest cost.

Sizes that only the launch knows count as 1,024, the same on both sides. The result is an element that a thread stores,
or, where only single threads store, an element that it reads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from frx_graph.analyzers.comparison.matching import Winner
from frx_graph.evidence.cuda.concrete import Test, Threads
from frx_graph.evidence.cuda.polynomial import Polynomial
from frx_graph.evidence.cuda.source import (
    Access,
    Barrier,
    BarrierKind,
    Event,
    Kernel,
    Loop,
    Space,
    StrideKind,
    Use,
    WarpOperation,
)

_SIZE = 1024
"""Stands for every size that only the launch knows."""
_SIZES = {"blockDim.x": 256, "blockDim.y": 1, "blockDim.z": 1, "gridDim.x": 64, "gridDim.y": 1, "gridDim.z": 1}
"""Stands for the launch, which the compared kernels need not share."""
_UNKNOWN_TURNS = 32
"""Stands for the iterations of a loop that are not known at all."""
_WARP = 32
_SECTOR_BYTES, _MOST_SECTORS = 32, 32
_SECTOR_CYCLES = 2.0
_REQUEST_CYCLES = 1.0
_TURN_CYCLES = 1.0
_BARRIER_CYCLES = 20.0
"""Assumed for a block of a few warps that arrive together."""
_ATOMIC_CYCLES = 4.0
"""Each further address, or each further thread at one address."""
_WORD = 4
_PART = 0.5
"""Share of the warps that are at work below a condition on the thread, as in the steps of a sum by halves."""
CLEARLY = 1.25
"""Ratio from which a prediction decides: the figures are round."""


@dataclass(frozen=True, slots=True)
class StaticCost:
    """Cycles of a warp for each result of a thread, at least and at most."""

    least: float
    most: float


@dataclass(frozen=True, slots=True)
class StaticCosts:
    """The costs of both sides."""

    a: StaticCost
    b: StaticCost

    @property
    def winner(self) -> Winner:
        """Return the side that costs clearly less, whatever is not known; UNKNOWN if neither does."""
        if self.a.most * CLEARLY < self.b.least:
            return Winner.A
        return Winner.B if self.b.most * CLEARLY < self.a.least else Winner.UNKNOWN


def predict_cost(kernel: Kernel) -> StaticCost | None:
    """Predict the cost of a kernel for each result; None if it was not read completely, or has no result."""
    if not kernel.complete or any(not call.pure for call in kernel.calls):
        return None
    turns = {number: _count_turns(kernel, loop) for number, loop in kernel.loops.items()}
    results = _count_results(kernel, turns)
    if not results:
        return None
    least = most = 0.0
    for event in kernel.events:
        low, high = _price_event(event)
        times = _count_runs(event, turns)
        least += times * low
        most += times * high
    return StaticCost(least / results, most / results) if most > 0 else None


def _count_results(kernel: Kernel, turns: Mapping[int, float]) -> float:
    """Count the elements that a thread stores; without stores by all threads, those that it reads."""
    own = [access for access in kernel.accesses if access.space is Space.GLOBAL and not access.step.single]
    stored = math.fsum(_count_elements(one) * _count_runs(one, turns) for one in own if one.use is Use.WRITE)
    return stored or math.fsum(_count_elements(one) * _count_runs(one, turns) for one in own if one.use is Use.READ)


def _count_elements(access: Access) -> float:
    """Return the words of 4 bytes in an element; wide types hold several results."""
    return max(1.0, (access.element_bytes or _WORD) / _WORD)


def _count_runs(event: Event, turns: Mapping[int, float]) -> float:
    """Return how often a warp gets to an event, on average."""
    times = math.prod(turns.get(number, _UNKNOWN_TURNS) for number in event.step.loops)
    for condition in event.step.conditions:
        if condition.single:
            times /= _WARP
        elif condition.lane and not (condition.bounds or condition.modulo or condition.ragged):
            times *= _PART
    return times


def _count_turns(kernel: Kernel, loop: Loop) -> float:
    """Return the iterations of a loop, with large sizes for what the launch decides."""
    if loop.count is not None:
        return float(loop.count)
    condition = loop.condition
    if condition is None or not isinstance(condition.tests, Test):
        return _UNKNOWN_TURNS
    name, difference = f"loop:{loop.step.line}", condition.tests.difference
    at = [_evaluate(kernel, difference, late) for late in (frozenset[str](), frozenset([name]))]
    if at[0] is None or at[1] is None or at[0] == at[1]:
        return _UNKNOWN_TURNS
    return float(max(1, math.ceil(abs(at[0]) / abs(at[1] - at[0]))))


def _evaluate(kernel: Kernel, value: Polynomial, late: frozenset[str]) -> int | None:
    place = {f"threadIdx.{axis}": 0 for axis in "xyz"} | {f"blockIdx.{axis}": 0 for axis in "xyz"}
    thread = Threads({**place, **_SIZES}, kernel.made, kernel.turns, late, _choose_size)
    found = thread.evaluate(value)
    return found if isinstance(found, int) else None


def _choose_size(symbol: str) -> int | None:
    return _SIZE if symbol.isidentifier() else None


def _price_event(event: Event) -> tuple[float, float]:
    if isinstance(event, Barrier):
        return (_BARRIER_CYCLES, _BARRIER_CYCLES) if event.kind is BarrierKind.BLOCK else (0.0, 0.0)
    if isinstance(event, WarpOperation):
        return _REQUEST_CYCLES, _REQUEST_CYCLES
    if not isinstance(event, Access):
        return 0.0, 0.0
    if event.space is Space.SHARED:
        low, high = (_TURN_CYCLES * turns for turns in _count_bank_turns(event))
    elif event.space in (Space.GLOBAL, Space.UNKNOWN):
        low, high = (_REQUEST_CYCLES + _SECTOR_CYCLES * sectors for sectors in _count_sectors(event))
    else:
        return 0.0, 0.0
    if event.use is Use.ATOMIC:
        one = _WARP * _ATOMIC_CYCLES if event.stride.kind is StrideKind.BROADCAST else _ATOMIC_CYCLES
        low, high = low + one, high + max(one, _WARP * _ATOMIC_CYCLES if "data" in event.varies else one)
    return low, high


def _count_bank_turns(access: Access) -> tuple[int, int]:
    """Return the turns of a warp's access of shared memory, at least and at most. A warp counts as one row of threads
    if its width is not known."""
    step = access.stride.elements
    if access.conflict is not None:
        return access.conflict, access.conflict
    if step is None:
        return 1, _WARP
    turns = math.gcd(abs(step) * max(1, (access.element_bytes or _WORD) // _WORD), _WARP) if step else 1
    return turns, turns


def _count_sectors(access: Access) -> tuple[float, float]:
    """Return the sectors of a warp's access, at least and at most."""
    size = access.element_bytes or _WORD
    whole = max(1.0, _WARP * size / _SECTOR_BYTES)
    if access.stride.kind is StrideKind.BROADCAST:
        return 1.0, 1.0
    if access.stride.elements is not None:
        apart = abs(access.stride.elements) * size
        found = min(float(_MOST_SECTORS), max(whole, _WARP * apart / _SECTOR_BYTES))
        return found, max(found, whole)
    # A stride that only the launch knows is the length of a row.
    least = float(_MOST_SECTORS) if access.stride.kind is StrideKind.SYMBOLIC else whole
    return least, max(whole, float(_MOST_SECTORS))


def compare_costs(a: Sequence[Kernel], b: Sequence[Kernel]) -> StaticCosts | None:
    """Compare the summed costs of kernels that are in the same order on both sides; None if one is unknown."""
    ours, theirs = (_sum_costs([predict_cost(one) for one in side]) for side in (a, b))
    if len(a) != len(b) or ours is None or theirs is None:
        return None
    return StaticCosts(ours, theirs)


def _sum_costs(costs: Sequence[StaticCost | None]) -> StaticCost | None:
    known = [cost for cost in costs if cost is not None]
    if not known or len(known) < len(costs):
        return None
    return StaticCost(math.fsum(cost.least for cost in known), math.fsum(cost.most for cost in known))
