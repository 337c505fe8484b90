"""Turn the layout copies of a trace into findings: one for all copies of a rule at one line of the program.

A trace shows operations that ran, not the graph. So findings are observed, their share of busy time is measured, and
unrecorded facts stay unknown.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from frx_graph.analyzers.trace.analysis import TraceAnalysis, average_per_step, count_steps_with, sum_known
from frx_graph.analyzers.trace.copies import TraceCopy
from frx_graph.analyzers.trace.kernel_names import extract_function_name
from frx_graph.capture.call_site import CallSite
from frx_graph.capture.captured_graph import Phase
from frx_graph.evidence.trace.tree import NONE
from frx_graph.passes import confidence
from frx_graph.passes.severity import grade_share
from frx_graph.records import Basis, Copy, Effort, Evidence, Finding, OperandRole, Risk, Saving
from frx_graph.support.plain_text import format_bytes

GRAPH_ID = "trace"
"""Replaces a graph's id, which a trace lacks, in findings and the summary of the trace."""
SOURCE = "trace"
_LISTED = 3
"""Kinds of copies that the evidence names."""


_WORDINGS = {
    "FRX001": (
        "{names} {copy} an operand inside",
        "give the operator strides that it takes as they are: store the producer's result that way, or reorder the "
        "dimensions after the operator and not before it",
        Effort.LOCAL,
        Risk.LOW,
    ),
    "FRX002": (
        "{names} {copy}",
        "make the copy once upstream, or have the producer write the layout that is wanted here; drop it where "
        "the consumer takes the strides as they are",
        Effort.LOCAL,
        Risk.LOW,
    ),
    "FRX004": (
        "{names} {convert} tensors between plain and channels-last",
        "run the whole region in channels-last, so that nothing is left to convert: "
        "`model.to(memory_format={format})` and `x = x.to(memory_format={format})`",
        Effort.ONE_LINE,
        Risk.LOW,
    ),
    "FRX007": (
        "The weights of {names} are converted on every call",
        "convert them once, before training or inference: `model.to(memory_format={format})`",
        Effort.ONE_LINE,
        Risk.LOW,
    ),
}
_NEEDLESS = (
    "{names} {copy} into the layout that the value has",
    "drop it, unless the value or the copy is written to afterwards",
    Effort.ONE_LINE,
    Risk.MEDIUM,
)
"""Title, fix, effort and risk by rule, and those of copies of FRX002 that change no strides."""


@dataclass(frozen=True, slots=True)
class CopiesAtSite:
    """All copies of one rule at one call site. Never empty."""

    rule: str
    site: CallSite
    copies: tuple[TraceCopy, ...]


def find_layout_copies(analysis: TraceAnalysis) -> list[Finding]:
    """Return findings of FRX001, FRX002, FRX004 and FRX007, in order of first appearance."""
    groups = group_copies(analysis)
    owners = {
        activity: number for number, group in enumerate(groups) for copy in group.copies for activity in copy.activities
    }
    alone = analysis.measure_busy_alone(owners)
    return [_make_finding(analysis, group, alone.get(number, 0)) for number, group in enumerate(groups)]


def group_copies(analysis: TraceAnalysis) -> list[CopiesAtSite]:
    """Group the copies of each of `find_layout_copies`, in the same order."""
    gathered: dict[tuple[str, object], list[TraceCopy]] = defaultdict(list)
    for copy in analysis.copies:
        gathered[copy.rule, analysis.find_site(copy.operator).place].append(copy)
    return [
        CopiesAtSite(rule, analysis.merge_sites([copy.operator for copy in copies]), tuple(copies))
        for (rule, _), copies in gathered.items()
    ]


def _make_finding(analysis: TraceAnalysis, group: CopiesAtSite, alone_ns: int) -> Finding:
    copies, steps = group.copies, analysis.steps
    size = sum_known(copy.bytes for copy in copies)
    on_device = any(copy.activities for copy in copies)
    time_ns = alone_ns if on_device else analysis.measure_host_copies(copies)
    # Only without a device's work can CPU time be saved.
    share = time_ns / analysis.busy_ns if analysis.busy_ns and on_device == analysis.on_device else None
    operators = tuple(dict.fromkeys(get_operator_name(analysis, copy.operator) for copy in copies))
    sources = [copy.operand.strides if copy.operand is not None else None for copy in copies]
    kept = None not in sources and sources == [copy.target for copy in copies]
    title, fix, effort, risk = _NEEDLESS if group.rule == "FRX002" and kept else _WORDINGS[group.rule]
    # A conversion kernel's name is certain; the tensor of FRX007 follows from order and times. Without operands, only
    # operators' names suggest a copy.
    certain = group.rule == "FRX004" or all(copy.operand is not None for copy in copies)
    sure = confidence.MEASURED if certain else confidence.MODELLED
    several = len(operators) > 1
    # Channels-last has another name for volumes.
    volumes = {len(copy.operand.shape) for copy in copies if copy.operand is not None} == {5}
    words = {
        "names": ", ".join(name.removeprefix("aten::") for name in operators[:3]),
        "copy": "copy" if several else "copies",
        "convert": "convert their" if several else "converts its",
        "format": "torch.channels_last_3d" if volumes else "torch.channels_last",
    }
    return Finding(
        rule=group.rule,
        title=title.format_map(words),
        severity=grade_share(share),
        site=group.site,
        nodes=tuple(dict.fromkeys(_format_label(analysis, copy) for copy in copies)),
        count_per_step=average_per_step(len(copies), steps),
        bytes_per_step=None if size is None else size // len(steps),
        saving=Saving(measured_pct=100.0 * share if share is not None else None),
        effort=effort,
        risk=risk,
        fix=fix.format_map(words),
        confidence=confidence.INFERRED if group.rule == "FRX007" else sure,
        basis=Basis.OBSERVED,
        evidence=_collect_evidence(analysis, group, time_ns, share),
        copies=record_copies(analysis, copies),
        modules=tuple(dict.fromkeys(filter(None, (analysis.find_site(copy.operator).module_path for copy in copies)))),
        graph_id=GRAPH_ID,
    )


def record_copies(analysis: TraceAnalysis, copies: Sequence[TraceCopy]) -> tuple[Copy, ...]:
    """Return one record for all copies of a tensor kind at one call site; bytes and count are per step. Copies of
    unknown size or role are left out."""
    gathered: dict[tuple[object, str, str, OperandRole, Phase], list[TraceCopy]] = defaultdict(list)
    for copy in copies:
        if copy.bytes is not None and copy.role is not None:
            place = analysis.find_site(copy.operator).place
            gathered[place, _format_label(analysis, copy), copy.kind, copy.role, copy.phase].append(copy)
    return tuple(
        Copy(
            node=label,
            site=analysis.find_site(same[0].operator),
            operator=get_operator_name(analysis, same[0].operator),
            kind=same[0].kind,
            role=role,
            value="",
            bytes=sum(copy.bytes or 0 for copy in same) // len(analysis.steps),
            count=average_per_step(len(same), analysis.steps),
            phase=phase,
            basis=Basis.OBSERVED,
            cause=_format_change(same[0]),
        )
        for (_, label, _, role, phase), same in gathered.items()
    )


def get_operator_name(analysis: TraceAnalysis, operator: int) -> str:
    """Return the name of an operator of the tree."""
    return analysis.tree.operators[operator].name if operator != NONE else "no operator"


def _collect_evidence(
    analysis: TraceAnalysis, group: CopiesAtSite, time_ns: int, share: float | None
) -> tuple[Evidence, ...]:
    copies, steps = group.copies, analysis.steps
    extent = f"in {count_steps_with(copies, steps)} of {len(steps)} steps" if steps.annotated else "in the whole trace"
    backward = sum(copy.phase is Phase.BACKWARD for copy in copies)
    split = f", {backward} of them in the backward" if backward else ""
    times = "1 copy" if len(copies) == 1 else f"{len(copies)} copies"
    lines = [
        f"{times} {extent}{split}: {_format_kinds(analysis, copies)}",
        _format_time(analysis, copies, time_ns, share),
    ]
    sizes = [copy.bytes for copy in copies if copy.bytes is not None]
    if sizes and len(sizes) < len(copies):
        lines.append(
            f"at least {format_bytes(sum(sizes))} were moved; {len(copies) - len(sizes)} copies have no known size"
        )
    if group.rule == "FRX004" and any(copy.role is None and copy.bytes is None for copy in copies):
        lines.append("which of the tensors were weights is not known: the trace does not tell their shapes")
    largest = max(copies, key=lambda copy: copy.bytes or 0)
    if largest.bytes is not None:
        lines.append(f"the largest: {_format_change(largest)}, {format_bytes(largest.bytes)}")
    return make_evidence(lines)


def make_evidence(lines: Iterable[str]) -> tuple[Evidence, ...]:
    """Return a fact of the trace for each line."""
    return tuple(Evidence(line, SOURCE, Basis.OBSERVED) for line in lines)


def _format_kinds(analysis: TraceAnalysis, copies: Sequence[TraceCopy]) -> str:
    """Name the sources of the copies, the most frequent first."""
    names: Counter[str] = Counter()
    for copy in copies:
        kernels = [extract_function_name(analysis.tree.activities[index].name) for index in copy.activities]
        under = get_operator_name(analysis, copy.maker)
        names[f"{', '.join(kernels)} under {under}" if kernels else under] += 1
    listed = [f"{count} × {name}" for name, count in names.most_common(_LISTED)]
    return ", ".join(listed) + (", ..." if len(names) > _LISTED else "")


def _format_time(analysis: TraceAnalysis, copies: Sequence[TraceCopy], time_ns: int, share: float | None) -> str:
    activities = [analysis.tree.activities[index] for copy in copies for index in copy.activities]
    busy, wall = format_ms(analysis.busy_ns), format_ms(analysis.wall_ns)
    if activities:
        total = format_ms(sum(activity.duration_ns for activity in activities))
        text = f"the kernels ran {total}, {format_ms(time_ns)} of it with nothing else running"
        return text if share is None else f"{text}: {100 * share:.2f} % of the {busy} that the device was busy"
    text = f"{format_ms(time_ns)} on the CPU"
    if share is not None:
        return f"{text}: {100 * share:.2f} % of the {busy} that operators ran"
    part = 100 * time_ns / analysis.wall_ns if analysis.wall_ns else 0.0
    return f"{text}, {part:.2f} % of the steps' {wall}; the device may hide it"


def _format_change(copy: TraceCopy) -> str:
    """Describe a copy and its strides before and after."""
    if copy.operand is None:
        return "a tensor of unknown shape"
    dtype = copy.operand.dtype.value if copy.operand.dtype is not None else "of unknown dtype"
    known = copy.operand.strides is not None and copy.target is not None
    change = f" from strides {copy.operand.strides} to {copy.target}" if known else ""
    return f"{copy.operand.shape} {dtype}{change}"


def _format_label(analysis: TraceAnalysis, copy: TraceCopy) -> str:
    name = get_operator_name(analysis, copy.operator)
    return f"{name} {copy.operand.shape}" if copy.operand is not None else name


def format_ms(time_ns: float) -> str:
    """Format nanoseconds in milliseconds, with three digits."""
    return f"{time_ns / 1e6:.3g} ms"
