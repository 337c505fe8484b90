"""Turn layout changes into findings: the part that FRX004 and FRX015 share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, takewhile

from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts
from frx_graph.facts.layout import Layout
from frx_graph.passes import confidence
from frx_graph.passes.analysis import Analysis
from frx_graph.passes.copies.view_chain import format_location, name_written_call
from frx_graph.passes.layouts.layout_choice import NOISE_SHARE, LayoutChange
from frx_graph.passes.layouts.layout_fixes import LayoutFix
from frx_graph.passes.layouts.regions import LayoutGroup, RegionOperator
from frx_graph.passes.severity import grade_share
from frx_graph.records import (
    HIDDEN_KINDS,
    TIMED_OPERATORS,
    Basis,
    Effort,
    Evidence,
    Finding,
    OperandRole,
    Refusal,
    Risk,
    Saving,
)
from frx_graph.support.plain_text import format_bytes, format_seconds

_LOADED = "other programs used the processors while this was timed: repeat it on a quiet machine"


def find_unmeasured_convolutions(
    analysis: Analysis, layout: Layout
) -> list[tuple[LayoutGroup, tuple[RegionOperator, ...]]]:
    """Return convolutions that run in `layout` and lack a time in one layout, by group; groups without any left out."""
    found = []
    for group in analysis.layout_groups:
        operators = tuple(
            operator
            for operator in group.operators
            if operator.op.operator.startswith("aten.convolution")
            and operator.layout is layout
            and ((times := analysis.layout_times.get(operator.op.node)) is None or times.gain_seconds is None)
        )
        if operators:
            found.append((group, operators))
    return found


def refuse_unmeasured(
    analysis: Analysis, rule: str, name: str, groups: Sequence[tuple[LayoutGroup, tuple[RegionOperator, ...]]]
) -> Iterable[Refusal]:
    """Refuse what a rule that needs measured times could not judge."""
    ops = [operator.op for _, operators in groups for operator in operators]
    if ops:
        layout = "plain" if groups[0][1][0].layout is Layout.PLAIN else "channels-last"
        reason = f"{len(ops)} convolutions run {layout} and were not timed in both layouts: which is faster is unknown"
        yield Refusal(f"{rule} {name}", reason, tuple(op.node for op in ops), ops[0].site)
    elif analysis.layout_times and analysis.device is None:
        yield Refusal(f"{rule} {name}", "the device's bandwidth, which prices conversions, is unknown")


def make_layout_finding(
    analysis: Analysis, changes: LayoutFix, *, rule: str, title: str, fix: str, effort: Effort, risk: Risk
) -> Finding:
    """Return the finding of one fix, with measured times, conversions, overlaps and assumptions."""
    assert analysis.device is not None, "changes are only sought if a bandwidth was measured"
    calls = analysis.facts.calls
    step_s = _estimate_step_seconds(analysis, analysis.device.bandwidth_bytes_per_s)
    share = calls * changes.total.gain_seconds / step_s
    sure_share = share - calls * NOISE_SHARE * changes.total.before_seconds / step_s
    copied = _count_copied_bytes(analysis, changes)
    overlap = f"FRX001 lists the layout copies of {format_bytes(copied)} that these operators make inside now"
    saved = copied - calls * changes.total.conversion_bytes
    measured = len(changes.anchors) - len(changes.total.unmeasured)
    # The times are of eager's operators; Inductor calls the same libraries, and fuses the operators around them.
    trust = confidence.MODELLED if analysis.inner == "inductor" else confidence.INFERRED
    trust = min(trust, confidence.LOADED) if analysis.loaded else trust
    return Finding(
        rule=rule,
        title=title,
        severity=grade_share(share),
        site=changes.site,
        nodes=tuple(op.node for op in changes.anchors),
        count_per_step=calls * len(changes.anchors),
        bytes_per_step=saved if saved > 0 else None,
        saving=Saving(
            predicted_pct_min=min(100.0, max(0.0, 100.0 * sure_share)),
            predicted_pct_max=min(100.0, 100.0 * share),
        ),
        effort=effort,
        risk=risk,
        fix=fix,
        confidence=round(trust * measured / len(changes.anchors), 2),
        evidence=(
            _describe_times(changes.total, measured),
            _describe_conversions(changes.total, analysis.device.bandwidth_bytes_per_s),
            *([Evidence(overlap, "predicted copies")] if copied else []),
            *([Evidence(_LOADED, TIMED_OPERATORS)] if analysis.loaded else []),
        ),
        graph_id=analysis.facts.graph_id,
        modules=changes.modules,
    )


def format_modules(changes: LayoutFix) -> str:
    """Return the module below the root that holds just the changed convolutions; else all of these, as patterns."""
    changed = changes.convolutions
    columns = zip(*(path.split(".") for path in changed), strict=False)
    shared = [parts[0] for parts in takewhile(lambda parts: len(set(parts)) == 1, columns)]
    holder = ".".join(shared)
    if len(shared) > 1 and not any(f"{path}.".startswith(f"{holder}.") for path in changes.other_convolutions):
        return f"`{holder}`"
    return _quote_paths(merge_module_paths(changed, changes.other_convolutions)) or "the region"


def format_values(values: Sequence[ValueFacts], facts: GraphFacts) -> str:
    """Name the values to convert as in the program: an input by name, the rest by operator, module and line."""
    names: list[str] = []
    results: dict[tuple[str, str], list[str]] = {}
    for value in values:
        producer = facts.get_producer(value.name)
        if producer is None:
            names.append(f"the input `{value.path or value.name}`")
        else:
            results.setdefault(_locate_operator(producer), []).append(producer.site.module_path)
    for (operator, line), paths in results.items():
        others = [op.site.module_path for op in facts.ops if _locate_operator(op) == (operator, line)]
        modules = _quote_paths(merge_module_paths(filter(None, paths), set(others) - set(paths)))
        result = "results" if len(set(paths)) > 1 else "result"
        names.append(f"the {result} of {operator}{f' ({modules})' if modules else ''} at {line}")
    return ", ".join(dict.fromkeys(names))


def _locate_operator(op: OpFacts) -> tuple[str, str]:
    return name_written_call(op), format_location(op.site)


def _quote_paths(paths: Iterable[str]) -> str:
    return ", ".join(f"`{path}`" for path in paths)


def format_anchor_count(count: int) -> str:
    """Return `12 convolutions and poolings run`."""
    return "1 convolution or pooling runs" if count == 1 else f"{count} convolutions and poolings run"


def _estimate_step_seconds(analysis: Analysis, bandwidth_bytes_per_s: float) -> float:
    """Return the seconds of one step: anchors as measured, all other traffic at the device's bandwidth."""
    anchor_s, anchor_bytes = 0.0, 0
    for group in analysis.layout_groups:
        for operator in group.operators:
            times = analysis.layout_times.get(operator.op.node)
            if not operator.anchor or times is None:
                continue
            taken = times.plain_seconds if operator.layout is Layout.PLAIN else times.channels_last_seconds
            if taken is not None:
                anchor_s += taken
                names = (*operator.op.inputs, *operator.op.outputs)
                anchor_bytes += sum(analysis.facts.values[name].bytes for name in names)
    calls = analysis.facts.calls
    return calls * anchor_s + max(0, analysis.step_bytes - calls * anchor_bytes) / bandwidth_bytes_per_s


def _count_copied_bytes(analysis: Analysis, changes: LayoutFix) -> int:
    """Return the traffic of the layout copies that the anchors make of images now, without their weights."""
    nodes = {op.node for op in changes.anchors}
    return sum(
        copy.bytes
        for copy in analysis.copies
        if copy.node in nodes and copy.kind in HIDDEN_KINDS and copy.role is not OperandRole.WEIGHT
    )


def _describe_times(total: LayoutChange, measured: int) -> Evidence:
    before, after = ("plain", "channels-last") if total.target is Layout.CHANNELS_LAST else ("channels-last", "plain")
    return Evidence(
        f"run by themselves, {measured} of {len(total.anchors)} convolutions and poolings take "
        f"{format_seconds(total.before_seconds)} {before} and {format_seconds(total.after_seconds)} {after} per "
        f"call; the measured percentage is of this time, conversions included, the predicted one of the whole step",
        TIMED_OPERATORS,
        Basis.OBSERVED,
    )


def _describe_conversions(total: LayoutChange, bandwidth_bytes_per_s: float) -> Evidence:
    source = "region edges"
    if total.conversion_bytes == 0:
        return Evidence("conversions at the region's edges: no more than now", source)
    if total.conversion_bytes < 0:
        text = f"conversions of {format_bytes(-total.conversion_bytes)} at the region's edges are no longer needed"
    else:
        text = f"conversions at the region's edges add {format_bytes(total.conversion_bytes)}"
    return Evidence(
        f"{text}: {format_seconds(abs(total.conversion_seconds))} at {bandwidth_bytes_per_s / 1e9:.1f} GB/s, counted",
        source,
    )


_Pattern = tuple[str, ...]
_ANY = "*"


def merge_module_paths(paths: Iterable[str], others: Iterable[str]) -> tuple[str, ...]:
    """Return patterns such as `model.layer3.*.conv1`, in order of first appearance; `*` is one part.

    No pattern matches one of `others`, and every path is matched. The last part is never `*`: it says what the module
    is.
    """
    patterns: list[_Pattern] = [tuple(path.split(".")) for path in dict.fromkeys(paths)]
    foreign = [tuple(path.split(".")) for path in others]
    for position in range(max(map(len, patterns), default=0) - 1):
        patterns = _merge_at(patterns, position, foreign)
    return tuple(".".join(pattern) for pattern in patterns)


def _merge_at(patterns: Sequence[_Pattern], position: int, foreign: Sequence[_Pattern]) -> list[_Pattern]:
    """Merge patterns that differ only at `position`, if that matches nothing foreign."""
    alike: dict[_Pattern, list[_Pattern]] = {}
    for pattern in patterns:
        # The last part stays; a path that is shorter has nothing to merge here.
        last = position >= len(pattern) - 1
        key = pattern if last else (*pattern[:position], _ANY, *pattern[position + 1 :])
        alike.setdefault(key, []).append(pattern)

    def matches_foreign(pattern: _Pattern) -> bool:
        pairs = (zip(pattern, path, strict=True) for path in foreign if len(path) == len(pattern))
        return any(all(part in (_ANY, other) for part, other in pair) for pair in pairs)

    merged = ([key] if len(found) > 1 and not matches_foreign(key) else found for key, found in alike.items())
    return list(chain.from_iterable(merged))
