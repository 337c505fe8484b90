"""Split the time in which devices wait for the host by what the host does meanwhile."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence

from frx_graph.analyzers.timeline.device_time import DeviceTime
from frx_graph.analyzers.timeline.host_time import ALLOCATIONS, find_waits
from frx_graph.analyzers.timeline.windows import Windows, clip_events
from frx_graph.analyzers.trace.analysis import TraceAnalysis
from frx_graph.analyzers.trace.operators import is_operator
from frx_graph.evidence.trace.intervals import Span, intersect_spans, subtract_spans, sum_spans

_READS = re.compile(r"aten::(?:item|_local_scalar_dense|is_nonzero|nonzero|equal)")
"""Operators whose result the host has to read from the device before it can go on."""


class HostWork(enum.StrEnum):
    """Activities of the host. If threads do several at once, the first of them counts."""

    READING = "reading"
    WAITING = "waiting"
    ALLOCATING = "allocating"
    LAUNCHING = "launching"
    DISPATCHING = "dispatching"
    PYTHON = "python"


HOST_WORK_TEXTS: Mapping[HostWork, str] = {
    HostWork.READING: "reads values from a device, as `.item()` does",
    HostWork.WAITING: "waits for a device",
    HostWork.ALLOCATING: "allocates and frees device memory",
    HostWork.LAUNCHING: "calls the runtime to launch work",
    HostWork.DISPATCHING: "is inside operators",
    HostWork.PYTHON: "is outside of operators, in Python or in what was not recorded",
}
"""A verb phrase for each."""


def split_idle_time(
    analysis: TraceAnalysis, windows: Windows, devices: Sequence[DeviceTime], loading: Sequence[Span]
) -> Mapping[HostWork, int]:
    """Return idle nanoseconds of all devices, without waits for input, by what the host does; the longest first."""
    tree, spans = analysis.tree, windows.spans
    calls = tree.trace.calls
    launching = {one.correlation for one in tree.activities} - {None}
    operators = [operator for operator in tree.operators if is_operator(operator)]
    done = {
        HostWork.READING: clip_events((one for one in operators if _READS.fullmatch(one.name)), spans),
        HostWork.WAITING: clip_events(find_waits(tree.trace), spans),
        HostWork.ALLOCATING: clip_events((call for call in calls if ALLOCATIONS.fullmatch(call.name)), spans),
        HostWork.LAUNCHING: clip_events((call for call in calls if call.correlation in launching), spans),
        HostWork.DISPATCHING: clip_events(operators, spans),
    }
    found = dict.fromkeys(HostWork, 0)
    for device in devices:
        idle = subtract_spans(device.idle, loading)
        for work, busy in done.items():
            found[work] += sum_spans(intersect_spans(idle, busy))
            idle = subtract_spans(idle, busy)
        found[HostWork.PYTHON] += sum_spans(idle)
    return dict(sorted(((work, time) for work, time in found.items() if time), key=lambda item: -item[1]))
