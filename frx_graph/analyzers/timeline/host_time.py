"""What the host did in the meantime: waiting for input, waiting for devices, allocating, and the parts of a step."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from frx_graph.analyzers.timeline.program_parts import Part
from frx_graph.analyzers.timeline.windows import Windows
from frx_graph.analyzers.trace.analysis import TraceAnalysis
from frx_graph.analyzers.trace.operators import is_operator
from frx_graph.capture.call_site import CallSite
from frx_graph.evidence.trace.events import RuntimeCall
from frx_graph.evidence.trace.intervals import Span, common, covers, length_ns, merged
from frx_graph.evidence.trace.tree import NONE, innermost

_WAITS = re.compile(
    r"(?:cuda|hip)(?:Stream|Device|Event)Synchronize(?:_\w+)?|cu(?:Ctx|Stream|Event)Synchronize"
    # Copies that return when they are done, as ROCm's torch uses them.
    r"|(?:cuda|hip)Memcpy(?:2D|3D)?(?:_\w+)?|hipMemcpyWithStream"
)
_ALLOCATIONS = re.compile(
    r"(?:cuda|hip)(?:Malloc|Free|HostAlloc|HostMalloc|FreeHost|HostFree)(?:Async|Managed)?(?:_\w+)?"
)
_LOADER_FRAME = re.compile(r".*torch/utils/data/dataloader\.py\(\d+\): __next__", re.DOTALL)
_COLLECTIVE = re.compile(r"(?:gloo|nccl|mpi|ucc|rccl):\w+")


@dataclass(frozen=True, slots=True)
class Waits:
    """All calls of one kind that were made from one place. `asker` is the outermost operator around them, None where
    the program called itself; `site` is known with it."""

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
class HostTime:
    """Times within the used steps, of unions over all threads. `loading` is None where nothing tells whether a program
    waits for input: no range of a DataLoader, and no Python frame of one; `waiting` and `allocating` where no runtime
    call was recorded; `collectives` are ranges of communication as the host saw it."""

    loading: tuple[Span, ...] | None
    waiting: tuple[Span, ...] | None
    waits: tuple[Waits, ...]
    allocating_ns: int | None
    calls: tuple[CallTotal, ...]
    """Of the runtime and driver, the longest first."""
    collectives: tuple[Span, ...]
    computing: tuple[Span, ...]
    """Dispatched operators that are no waiting for input."""
    part_spans: dict[Part, tuple[Span, ...]]

    @property
    def parts(self) -> dict[Part, int]:
        """Time in each part of the steps."""
        return {part: length_ns(spans) for part, spans in self.part_spans.items()}

    @property
    def loading_ns(self) -> int | None:
        """Time in which the program waits for a batch."""
        return None if self.loading is None else length_ns(self.loading)

    @property
    def waiting_ns(self) -> int | None:
        """Time in which a thread waits for a device."""
        return None if self.waiting is None else length_ns(self.waiting)

    @property
    def collectives_ns(self) -> int:
        """Time in which a thread communicates."""
        return length_ns(self.collectives)


def host_time(analysis: TraceAnalysis, windows: Windows, parts: Sequence[Part]) -> HostTime:
    """What the host's threads did within the used steps; `parts` is by operator."""
    tree, trace, spans = analysis.tree, analysis.tree.trace, windows.host_spans
    entered: dict[Part, list[Span]] = defaultdict(list)
    computing: list[Span] = []
    for operator, parent, part in zip(tree.operators, tree.parents, parts, strict=True):
        above = parts[parent] if parent != NONE else None
        if part is not above:
            entered[part].append((operator.start_ns, operator.end_ns))
        if part is not Part.LOADING and above is not part and is_operator(operator):
            computing.append((operator.start_ns, operator.end_ns))
    loading = entered.get(Part.LOADING) or [
        (frame.start_ns, frame.end_ns) for frame in trace.frames if _LOADER_FRAME.fullmatch(frame.name)
    ]
    waiting = [call for call in trace.calls if _WAITS.fullmatch(call.name)]
    allocating = [call for call in trace.calls if _ALLOCATIONS.fullmatch(call.name)]
    inside = [call for call in waiting if covers(spans, call.start_ns)]
    return HostTime(
        loading=common(merged(loading), spans) if loading else None,
        waiting=common(merged(_spans(waiting)), spans) if trace.calls else None,
        waits=_waits(analysis, inside),
        allocating_ns=length_ns(common(merged(_spans(allocating)), spans)) if trace.calls else None,
        calls=_calls(call for call in trace.calls if covers(spans, call.start_ns)),
        collectives=common(
            merged((one.start_ns, one.end_ns) for one in tree.operators if _COLLECTIVE.fullmatch(one.name)), spans
        ),
        computing=common(merged(computing), spans),
        part_spans={part: common(merged(here), spans) for part, here in entered.items() if part is not Part.OTHER},
    )


def _calls(calls: Iterable[RuntimeCall]) -> tuple[CallTotal, ...]:
    times: dict[str, list[int]] = defaultdict(list)
    for call in calls:
        times[call.name].append(call.duration_ns)
    found = [CallTotal(name, len(same), sum(same)) for name, same in times.items()]
    return tuple(sorted(found, key=lambda one: (-one.total_ns, one.name)))


def _spans(calls: Sequence[RuntimeCall]) -> list[Span]:
    return [(call.start_ns, call.end_ns) for call in calls]


def _waits(analysis: TraceAnalysis, calls: Sequence[RuntimeCall]) -> tuple[Waits, ...]:
    tree = analysis.tree
    around = innermost(tree.operators, [(call.thread, call.start_ns) for call in calls])
    gathered: dict[tuple[str, int], list[RuntimeCall]] = defaultdict(list)
    first: dict[tuple[str, str], int] = {}
    for call, operator in zip(calls, around, strict=True):
        outer = NONE
        while operator != NONE:
            if is_operator(tree.operators[operator]):
                outer = operator
            operator = tree.parents[operator]
        # One operator stands for all of its name and place.
        name = tree.operators[outer].name if outer != NONE else ""
        place = str(analysis.site(outer)) if outer != NONE else ""
        gathered[call.name, first.setdefault((name, place), outer)].append(call)
    found = [
        Waits(
            call=name,
            asker=tree.operators[outer].name if outer != NONE else None,
            site=analysis.site(outer) if outer != NONE else None,
            count=len(same),
            total_ns=sum(call.duration_ns for call in same),
        )
        for (name, outer), same in gathered.items()
    ]
    return tuple(sorted(found, key=lambda one: -one.total_ns))
