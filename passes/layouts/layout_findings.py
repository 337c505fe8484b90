"""Turn layout changes into findings: the part that FRX004 and FRX015 share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts
from frx_graph.facts.layout import Layout
from frx_graph.passes import confidence
from frx_graph.passes.analysis import Analysis
from frx_graph.passes.copies.view_chain import file_and_line
from frx_graph.passes.layouts.layout_choice import NOISE_SHARE
from frx_graph.passes.layouts.layout_fixes import LayoutChanges
from frx_graph.passes.layouts.regions import LayoutGroup, RegionOperator
from frx_graph.passes.severity import severity_of_share
from frx_graph.records import HIDDEN_KINDS, Basis, Effort, Evidence, Finding, OperandRole, Refusal, Risk, Saving
from frx_graph.support.plain_text import bytes_text, seconds_text


def unmeasured_convolutions(analysis: Analysis, layout: Layout) -> list[tuple[LayoutGroup, tuple[RegionOperator, ...]]]:
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


def not_measured(
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


def layout_finding(
    analysis: Analysis, changes: LayoutChanges, *, rule: str, title: str, fix: str, effort: Effort, risk: Risk
) -> Finding:
    """Return the finding of one fix, with measured times, conversions, overlaps and assumptions."""
    assert analysis.device is not None, "changes are only looked for where a bandwidth was measured"
    calls = analysis.facts.calls
    step_s = _step_seconds(analysis, analysis.device.bandwidth_bytes_per_s)
    share = calls * changes.gain_seconds / step_s
    sure_share = share - calls * NOISE_SHARE * changes.before_seconds / step_s
    copied = _copied_inside(analysis, changes)
    saved = copied - calls * changes.conversion_bytes
    measured = len(changes.anchors) - len(changes.unmeasured)
    # The times are of eager's operators; Inductor calls the same libraries, and fuses the operators around them.
    trust = confidence.MODELLED if analysis.inner == "inductor" else confidence.INFERRED
    return Finding(
        rule=rule,
        title=title,
        severity=severity_of_share(share),
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
            _times(changes, measured),
            _conversions(changes, analysis.device.bandwidth_bytes_per_s),
            *_overlap(copied),
        ),
        graph_id=analysis.facts.graph_id,
        modules=changes.modules,
    )


def modules_text(changes: LayoutChanges) -> str:
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
    return _quoted(module_patterns(changed, changes.other_convolutions)) or "the region"


def values_text(values: Sequence[ValueFacts], facts: GraphFacts) -> str:
    """Name the values to convert as in the program: an input by name, the rest by operator, module and line."""
    names: list[str] = []
    results: dict[tuple[str, str], list[str]] = {}
    for value in values:
        producer = facts.producer(value.name)
        if producer is None:
            names.append(f"the input `{value.path or value.name}`")
        else:
            results.setdefault(_operator_and_line(producer), []).append(producer.site.module_path)
    for (operator, line), paths in results.items():
        others = [op.site.module_path for op in facts.ops if _operator_and_line(op) == (operator, line)]
        modules = _quoted(module_patterns(filter(None, paths), set(others) - set(paths)))
        result = "results" if len(set(paths)) > 1 else "result"
        names.append(f"the {result} of {operator}{f' ({modules})' if modules else ''} at {line}")
    return ", ".join(dict.fromkeys(names))


def _operator_and_line(op: OpFacts) -> tuple[str, str]:
    return op.operator.removeprefix("aten."), file_and_line(op.site)


def _quoted(paths: Iterable[str]) -> str:
    return ", ".join(f"`{path}`" for path in paths)


def anchors_run(count: int) -> str:
    """Return `12 convolutions and poolings run`."""
    return "1 convolution or pooling runs" if count == 1 else f"{count} convolutions and poolings run"


def _step_seconds(analysis: Analysis, bandwidth_bytes_per_s: float) -> float:
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
                touched = (*analysis.facts.input_values(operator.op), *analysis.facts.output_values(operator.op))
                anchor_bytes += sum(value.bytes for value in touched)
    calls = analysis.facts.calls
    return calls * anchor_s + max(0, analysis.step_bytes - calls * anchor_bytes) / bandwidth_bytes_per_s


def _copied_inside(analysis: Analysis, changes: LayoutChanges) -> int:
    """Return the traffic of the layout copies that the anchors make of images now, without their weights."""
    nodes = {op.node for op in changes.anchors}
    return sum(
        copy.bytes
        for copy in analysis.copies
        if copy.node in nodes and copy.kind in HIDDEN_KINDS and copy.role is not OperandRole.WEIGHT
    )


def _times(changes: LayoutChanges, measured: int) -> Evidence:
    before, after = ("plain", "channels-last") if changes.target is Layout.CHANNELS_LAST else ("channels-last", "plain")
    return Evidence(
        f"run by themselves, {measured} of {len(changes.anchors)} convolutions and poolings take "
        f"{seconds_text(changes.before_seconds)} {before} and {seconds_text(changes.after_seconds)} {after} per call; "
        f"the measured percentage is of this time, conversions included, the predicted one of the whole step",
        "anchor measurement",
        Basis.OBSERVED,
    )


def _conversions(changes: LayoutChanges, bandwidth_bytes_per_s: float) -> Evidence:
    source = "region edges"
    if changes.conversion_bytes == 0:
        return Evidence("conversions at the region's edges: none more than now", source)
    if changes.conversion_bytes < 0:
        text = f"conversions of {bytes_text(-changes.conversion_bytes)} at the region's edges are no longer needed"
    else:
        text = f"conversions at the region's edges add {bytes_text(changes.conversion_bytes)}"
    return Evidence(
        f"{text}: {seconds_text(abs(changes.conversion_seconds))} at {bandwidth_bytes_per_s / 1e9:.1f} GB/s, counted",
        source,
    )


def _overlap(copied: int) -> tuple[Evidence, ...]:
    if not copied:
        return ()
    text = f"FRX001 lists the layout copies of {bytes_text(copied)} that these operators make inside now"
    return (Evidence(text, "predicted copies"),)


_Pattern = tuple[str, ...]
_ANY = "*"


def module_patterns(paths: Iterable[str], others: Iterable[str]) -> tuple[str, ...]:
    """Return patterns such as `model.layer3.*.conv1`, in order of first appearance; `*` is one part.

    No pattern matches one of `others`, and every path is matched. The last part is never `*`: it says what the module
    is.
    """
    patterns: list[_Pattern] = [tuple(path.split(".")) for path in dict.fromkeys(paths)]
    foreign = [tuple(path.split(".")) for path in others]
    for position in range(max(map(len, patterns), default=0) - 1):
        patterns = _merged(patterns, position, foreign)
    return tuple(".".join(pattern) for pattern in patterns)


def _merged(patterns: Sequence[_Pattern], position: int, foreign: Sequence[_Pattern]) -> list[_Pattern]:
    """Merge patterns that differ only at `position`, if that matches nothing foreign."""
    alike: dict[_Pattern, list[_Pattern]] = {}
    for pattern in patterns:
        # The last part stays; a path that is shorter has nothing to merge here.
        last = position >= len(pattern) - 1
        key = pattern if last else (*pattern[:position], _ANY, *pattern[position + 1 :])
        alike.setdefault(key, []).append(pattern)
    merged: list[_Pattern] = []
    for key, members in alike.items():
        if len(members) > 1 and not any(_matches(key, path) for path in foreign):
            merged.append(key)
        else:
            merged.extend(members)
    return merged


def _matches(pattern: _Pattern, path: _Pattern) -> bool:
    return len(pattern) == len(path) and all(part in (_ANY, other) for part, other in zip(pattern, path, strict=True))
