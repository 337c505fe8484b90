"""Turn layout changes into findings: the part that FRX004 and FRX015 share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts
from frx_graph.facts.layout import Layout
from frx_graph.passes import confidence
from frx_graph.passes.analysis import Analysis
from frx_graph.passes.copies.view_chain import format_location
from frx_graph.passes.layouts.layout_choice import NOISE_SHARE
from frx_graph.passes.layouts.layout_fixes import LayoutFix
from frx_graph.passes.layouts.regions import LayoutGroup, RegionOperator
from frx_graph.passes.severity import grade_share
from frx_graph.records import HIDDEN_KINDS, Basis, Effort, Evidence, Finding, OperandRole, Refusal, Risk, Saving
from frx_graph.support.plain_text import format_bytes, format_seconds


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
    share = calls * changes.gain_seconds / step_s
    sure_share = share - calls * NOISE_SHARE * changes.before_seconds / step_s
    copied = _count_copied_bytes(analysis, changes)
    saved = copied - calls * changes.conversion_bytes
    measured = len(changes.anchors) - len(changes.unmeasured)
    # The times are of eager's operators; Inductor calls the same libraries, and fuses the operators around them.
    trust = confidence.MODELLED if analysis.inner == "inductor" else confidence.INFERRED
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
            measured_pct=100.0 * changes.gain_seconds / changes.before_seconds,
        ),
        effort=effort,
        risk=risk,
        fix=fix,
        confidence=round(trust * measured / len(changes.anchors), 2),
        evidence=(
            _describe_times(changes, measured),
            _describe_conversions(changes, analysis.device.bandwidth_bytes_per_s),
            *_describe_overlap(copied),
        ),
        graph_id=analysis.facts.graph_id,
        modules=changes.modules,
    )


def format_modules(changes: LayoutFix) -> str:
    """Return the module that holds the changed convolutions and no others, if there is one below the root; else all of
    them, as patterns."""
    changed = changes.convolutions
    split = [path.split(".") for path in changed]
    shared: list[str] = []
    for parts in zip(*split, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
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
    return op.operator.removeprefix("aten."), format_location(op.site)


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
                touched = (
                    *analysis.facts.get_input_values(operator.op),
                    *analysis.facts.get_output_values(operator.op),
                )
                anchor_bytes += sum(value.bytes for value in touched)
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


def _describe_times(changes: LayoutFix, measured: int) -> Evidence:
    before, after = ("plain", "channels-last") if changes.target is Layout.CHANNELS_LAST else ("channels-last", "plain")
    return Evidence(
        f"run by themselves, {measured} of {len(changes.anchors)} convolutions and poolings take "
        f"{format_seconds(changes.before_seconds)} {before} and {format_seconds(changes.after_seconds)} "
        f"{after} per call; "
        f"the measured percentage is of this time, conversions included, the predicted one of the whole step",
        "anchor measurement",
        Basis.OBSERVED,
    )


def _describe_conversions(changes: LayoutFix, bandwidth_bytes_per_s: float) -> Evidence:
    source = "region edges"
    if changes.conversion_bytes == 0:
        return Evidence("conversions at the region's edges: no more than now", source)
    if changes.conversion_bytes < 0:
        text = f"conversions of {format_bytes(-changes.conversion_bytes)} at the region's edges are no longer needed"
    else:
        text = f"conversions at the region's edges add {format_bytes(changes.conversion_bytes)}"
    return Evidence(
        f"{text}: {format_seconds(abs(changes.conversion_seconds))} at {bandwidth_bytes_per_s / 1e9:.1f} GB/s, counted",
        source,
    )


def _describe_overlap(copied: int) -> tuple[Evidence, ...]:
    if not copied:
        return ()
    text = f"FRX001 lists the layout copies of {format_bytes(copied)} that these operators make inside now"
    return (Evidence(text, "predicted copies"),)


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
    merged: list[_Pattern] = []
    for key, members in alike.items():
        if len(members) > 1 and not any(_matches_pattern(key, path) for path in foreign):
            merged.append(key)
        else:
            merged.extend(members)
    return merged


def _matches_pattern(pattern: _Pattern, path: _Pattern) -> bool:
    return len(pattern) == len(path) and all(part in (_ANY, other) for part, other in zip(pattern, path, strict=True))
