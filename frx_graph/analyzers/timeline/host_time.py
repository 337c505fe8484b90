"""Measure the host: waits for input and for devices, allocations, and the parts of a step."""

from __future__ import annotations

import enum
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from frx_graph.analyzers.timeline.windows import Windows, clip_events
from frx_graph.analyzers.trace.analysis import TraceAnalysis
from frx_graph.analyzers.trace.operators import is_operator, iterate_upwards
from frx_graph.capture.call_site import CallSite
from frx_graph.evidence.trace.events import (
    ActivityKind,
    DeviceActivity,
    HostSpan,
    Operand,
    RuntimeCall,
    parse_transfer,
)
from frx_graph.evidence.trace.intervals import Span, is_covered, sum_spans
from frx_graph.evidence.trace.steps import Steps
from frx_graph.evidence.trace.torch_trace import TorchTrace
from frx_graph.evidence.trace.tree import NONE, TraceTree, find_innermost

_LOADER = re.compile(r"enumerate\(Data(?:Loader|Pipe)\)#.*|.*DataLoader.*__next__", re.DOTALL)
"""`enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__`, torch's name for the wait for a batch."""
_ENGINE = "autograd::engine::"


class Part(enum.StrEnum):
    """A part of a step. `FORWARD` is every operator outside the other parts: the forward, the loss, and other calls.
    `OTHER` covers ranges that the program named."""

    LOADING = "dataloader"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    ZERO_GRAD = "zero_grad"
    OTHER = "other"


_CLOSED = frozenset({Part.LOADING, Part.BACKWARD, Part.OPTIMIZER, Part.ZERO_GRAD})
"""Calls within these parts belong to them."""


def classify_operators(tree: TraceTree) -> tuple[Part, ...]:
    """Return the part of each operator, in one pass from callers to callees."""
    found: list[Part] = []
    for index, (operator, parent) in enumerate(zip(tree.operators, tree.parents, strict=True)):
        above = found[parent] if parent != NONE else Part.OTHER
        backward = tree.backward_of[index] is not None
        found.append(above if above in _CLOSED else _classify_part(operator.name, operator.annotation, backward))
    return tuple(found)


def _classify_part(name: str, annotation: bool, backward: bool) -> Part:
    if _LOADER.fullmatch(name):
        return Part.LOADING
    if name.startswith("Optimizer.step"):
        return Part.OPTIMIZER
    if name.startswith("Optimizer.zero_grad"):
        return Part.ZERO_GRAD
    if backward or name.startswith(_ENGINE):
        return Part.BACKWARD
    return Part.OTHER if annotation or name.startswith("ProfilerStep#") else Part.FORWARD


FEWEST_STEPS = 3
"""With two steps, there is at most one change."""
_WAITS = re.compile(
    r"(?:cuda|hip)(?:Stream|Device|Event)Synchronize(?:_\w+)?|cu(?:Ctx|Stream|Event)Synchronize"
    # Copies that return after completion, as ROCm's torch uses them.
    r"|(?:cuda|hip)Memcpy(?:2D|3D)?(?:_\w+)?|hipMemcpyWithStream"
)
"""Calls that return once a device is done."""
_COPIES = re.compile(r"(?:cuda|hip)Memcpy\w*|cuMemcpy\w*")
ALLOCATIONS = re.compile(
    r"(?:cuda|hip)(?:Malloc|Free|HostAlloc|HostMalloc|FreeHost|HostFree)(?:Async|Managed)?(?:_\w+)?"
)
"""Calls that allocate or free memory of a device, or pinned memory."""
_LOADER_FRAME = re.compile(r".*torch/utils/data/dataloader\.py\(\d+\): __next__", re.DOTALL)
_COLLECTIVE = re.compile(r"(?:gloo|nccl|mpi|ucc|rccl):\w+")


@dataclass(frozen=True, slots=True)
class Waits:
    """All calls of one kind from one place. `asker` is the outermost operator around them, None if the program itself
    called; `site` is known with it."""

    call: str
    asker: str | None
    site: CallSite | None
    count: int
    total_ns: int


@dataclass(frozen=True, slots=True)
class CallTotal:
    """All calls of one function of the runtime or driver."""

    name: str
    count: int
    total_ns: int


@dataclass(frozen=True, slots=True)
class HostOperator:
    """All calls of one operator. `self_ns` leaves out the operators that it called."""

    name: str
    calls: int
    self_ns: int


@dataclass(frozen=True, slots=True)
class HostTime:
    """Times within the used steps, as unions over all threads. `loading` is None without a range or frame of a
    DataLoader, `waiting` and `allocating_ns` without recorded runtime calls. `collectives` are communication ranges
    on the host."""

    loading: tuple[Span, ...] | None
    waiting: tuple[Span, ...] | None
    waits: tuple[Waits, ...]
    allocating_ns: int | None
    calls: tuple[CallTotal, ...]
    """Calls of the runtime and driver, the longest first."""
    collectives: tuple[Span, ...]
    computing: tuple[Span, ...]
    """Dispatched operators that do not wait for input."""
    part_spans: dict[Part, tuple[Span, ...]]
    operators: tuple[HostOperator, ...]
    """Dispatched operators, those with the most time of their own first. Empty if a device did anything."""

    @property
    def operators_ns(self) -> int:
        """Return the time of all operators, summed over threads."""
        return sum(one.self_ns for one in self.operators)

    @property
    def parts(self) -> dict[Part, int]:
        """Return the time in each part of the steps."""
        return {part: sum_spans(spans) for part, spans in self.part_spans.items()}

    @property
    def loading_ns(self) -> int | None:
        """Return the time in which the program waits for a batch."""
        return None if self.loading is None else sum_spans(self.loading)

    @property
    def waiting_ns(self) -> int | None:
        """Return the time in which a thread waits for a device."""
        return None if self.waiting is None else sum_spans(self.waiting)

    @property
    def collectives_ns(self) -> int:
        """Return the time in which a thread communicates."""
        return sum_spans(self.collectives)


def find_waits(trace: TorchTrace) -> list[RuntimeCall]:
    """Return the calls that return once a device is done. A copy to pageable memory does, whatever its name ("API
    synchronization behavior" in the documentation of the CUDA runtime)."""
    blocking = {one.correlation for one in trace.activities if _ends_in_pageable_memory(one)} - {None, 0}
    return [
        call
        for call in trace.calls
        if _WAITS.fullmatch(call.name) or (call.correlation in blocking and _COPIES.fullmatch(call.name))
    ]


def _ends_in_pageable_memory(activity: DeviceActivity) -> bool:
    if activity.kind is not ActivityKind.MEMCPY:
        return False
    transfer = parse_transfer(activity.name)
    return transfer.direction == "DtoH" and transfer.host_memory == "pageable"


def measure_host(analysis: TraceAnalysis, windows: Windows, parts: Sequence[Part]) -> HostTime:
    """Measure the host's threads within the used steps; `parts` is by operator."""
    tree, trace, spans = analysis.tree, analysis.tree.trace, windows.host_spans
    entered: dict[Part, list[HostSpan]] = defaultdict(list)
    computing: list[HostSpan] = []
    for operator, parent, part in zip(tree.operators, tree.parents, parts, strict=True):
        above = parts[parent] if parent != NONE else None
        if part is not above:
            entered[part].append(operator)
        if part is not Part.LOADING and above is not part and is_operator(operator):
            computing.append(operator)
    loading = entered.get(Part.LOADING) or [frame for frame in trace.frames if _LOADER_FRAME.fullmatch(frame.name)]
    waiting = find_waits(trace)
    allocating = (call for call in trace.calls if ALLOCATIONS.fullmatch(call.name))
    times: dict[str, list[int]] = defaultdict(list)
    for call in trace.calls:
        if is_covered(spans, call.start_ns):
            times[call.name].append(call.duration_ns)
    calls = [CallTotal(name, len(same), sum(same)) for name, same in times.items()]
    return HostTime(
        loading=clip_events(loading, spans) if loading else None,
        waiting=clip_events(waiting, spans) if trace.calls else None,
        waits=_group_waits(analysis, [call for call in waiting if is_covered(spans, call.start_ns)]),
        allocating_ns=sum_spans(clip_events(allocating, spans)) if trace.calls else None,
        calls=tuple(sorted(calls, key=lambda one: (-one.total_ns, one.name))),
        collectives=clip_events((one for one in tree.operators if _COLLECTIVE.fullmatch(one.name)), spans),
        computing=clip_events(computing, spans),
        part_spans={part: clip_events(here, spans) for part, here in entered.items() if part is not Part.OTHER},
        operators=() if analysis.on_device else _sum_operators(tree, spans),
    )


def _sum_operators(tree: TraceTree, spans: Sequence[Span]) -> tuple[HostOperator, ...]:
    times: dict[str, list[int]] = defaultdict(list)
    for operator, own in zip(tree.operators, tree.self_ns, strict=True):
        if is_operator(operator) and is_covered(spans, operator.start_ns):
            times[operator.name].append(own)
    found = (HostOperator(name, len(same), sum(same)) for name, same in times.items())
    return tuple(sorted(found, key=lambda one: (-one.self_ns, one.name)))


def _group_waits(analysis: TraceAnalysis, calls: Sequence[RuntimeCall]) -> tuple[Waits, ...]:
    tree = analysis.tree
    around = find_innermost(tree.operators, [(call.thread, call.start_ns) for call in calls])
    gathered: dict[tuple[str, int], list[RuntimeCall]] = defaultdict(list)
    first: dict[tuple[str, str], int] = {}
    for call, operator in zip(calls, around, strict=True):
        outer = NONE
        for index in iterate_upwards(tree, operator):
            outer = index if is_operator(tree.operators[index]) else outer
        # The first operator of a name and place represents all.
        name = tree.operators[outer].name if outer != NONE else ""
        place = str(analysis.find_site(outer)) if outer != NONE else ""
        gathered[call.name, first.setdefault((name, place), outer)].append(call)
    found = [
        Waits(
            call=name,
            asker=tree.operators[outer].name if outer != NONE else None,
            site=analysis.find_site(outer) if outer != NONE else None,
            count=len(same),
            total_ns=sum(call.duration_ns for call in same),
        )
        for (name, outer), same in gathered.items()
    ]
    return tuple(sorted(found, key=lambda one: -one.total_ns))


@dataclass(frozen=True, slots=True)
class ShapeChanges:
    """Among `steps` used ones, the number with other operators or shapes than the step before."""

    steps: int
    changes: int

    @property
    def share(self) -> float:
        """Return the number of changes over the steps with a predecessor."""
        return self.changes / (self.steps - 1)


def count_shape_changes(analysis: TraceAnalysis, windows: Windows, parts: Sequence[Part]) -> ShapeChanges | None:
    """Count changes of shapes; `parts` is by operator, and loading does not count. None unless shapes were recorded in
    each of at least `FEWEST_STEPS` steps."""
    if len(windows.used) < FEWEST_STEPS:
        return None
    steps = Steps(windows.used)
    calls: list[Counter[tuple[str, tuple[Operand | None, ...]]]] = [Counter() for _ in windows.used]
    for operator, part in zip(analysis.tree.operators, parts, strict=True):
        if operator.operands is None or part is Part.LOADING:
            continue
        if (step := steps.find_position(operator.start_ns)) is not None:
            calls[step][operator.name, operator.operands] += 1
    changes = sum(one != before for before, one in pairwise(calls))
    return ShapeChanges(len(calls), changes) if all(calls) else None
