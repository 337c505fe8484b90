"""Render what changed between two runs, traces or advice files for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from frx_graph.analyzers.run_change.recording import RecordKind
from frx_graph.analyzers.run_change.step_times import PROCESS_SPREAD, StepVerdict
from frx_graph.reports.render.quantities import (
    format_byte_count,
    format_count,
    format_ms,
    format_percent,
    format_quantity,
    format_share,
)
from frx_graph.reports.render.source_path import cut_path
from frx_graph.reports.render.text_console import make_console, print_more, print_section, print_title, print_wrapped
from frx_graph.reports.runs.run_change_document import (
    KernelChangePart,
    KernelUsePart,
    LabelChangePart,
    ProblemPart,
    RunChangeResult,
    ShareChangePart,
    StepChangePart,
)
from frx_graph.support.plain_text import clean_line

_TITLES = {RecordKind.RUN: "RUNS", RecordKind.TRACE: "TRACES", RecordKind.ADVICE: "ADVICE"}
_NAME = 48
_NOUNS = {RecordKind.RUN: "run", RecordKind.TRACE: "trace", RecordKind.ADVICE: "advice"}
_OTHER_STORY = math.log(1.1)
"""Ratios of the means and the medians that differ by more than a tenth are both shown, if the interval of the medians
does not include that of the means: a choice."""


def render_run_change(result: RunChangeResult, *, top: int, width: int, color: bool) -> str:
    """Render the verdict, labels, shares, the `top` kernels and findings."""
    out, console = make_console(width, color, soft_wrap=True)
    console.print(Text.assemble((f"{_TITLES[result.kind]} COMPARED", "bold")))
    print_wrapped(console, f"before: {cut_path(result.before, width - 12)}")
    print_wrapped(console, f"after:  {cut_path(result.after, width - 12)}")
    print_section(console, "VERDICT", _yield_verdict(result))
    print_section(console, "LABELS", _yield_labels(result))
    costs = (
        f"{one.name}: {format_quantity(one.before, one.unit)} -> {format_quantity(one.after, one.unit)}"
        for one in result.costs
    )
    print_section(console, "COST OF A STEP", costs)
    print_section(console, "SHARES OF A STEP", map(_describe_share, result.shares))
    title = "KERNELS, PER STEP" if result.kernels_per_step else "KERNELS, OF ALL"
    print_section(console, title, map(_describe_kernel, result.kernels[:top]))
    print_more(console, len(result.kernels), top, "kernels")
    _print_problems(console, "FINDINGS RESOLVED", result.findings_resolved, top)
    _print_problems(console, "NEW FINDINGS", result.findings_new, top)
    print_section(console, "OTHER CONDITIONS", result.other_machine)
    return out.getvalue()


def _yield_verdict(result: RunChangeResult) -> Iterator[str]:
    if not result.comparable:
        yield "the two have nothing in common that could be compared"
        return
    if result.steps is not None:
        yield _describe_steps(result.steps)
        yield from _describe_means(result.steps)
    elif result.kind is not RecordKind.ADVICE:
        yield "step times are undecided: one side has no steps"
    new, gone = len(result.findings_new), len(result.findings_resolved)
    if result.kind is RecordKind.ADVICE or new or gone or result.findings_kept:
        yield f"{format_count(gone, 'finding')} resolved, {new:,} new, {result.findings_kept:,} as before"
    yield from _conclude(result)


def _conclude(result: RunChangeResult) -> Iterator[str]:
    """Yield whether the second side is better or worse, and what is against it."""
    better, new = "; ".join(result.improvements), len(result.findings_new)
    if result.regressions:
        against = f"; better in one respect: {better}" if better else ""
        yield f"the second is worse: {'; '.join(result.regressions)}{against}"
    elif better:
        codes = ", ".join(sorted({one.rule for one in result.findings_new}))
        against = f"; new: {format_count(new, 'finding')} ({codes}{_describe_cost(result.findings_new)})" if new else ""
        yield f"the second is better: {better}{against}"
    elif result.kind is RecordKind.ADVICE:
        cost = result.finding_cost
        same = "what a step costs is not known" if cost is None else f"{cost.subject} as much as before"
        yield f"neither is worse: {same}"
    faster = result.steps is not None and result.steps.verdict is StepVerdict.FASTER
    judged = (result.regressions or result.improvements) and not faster
    if result.finding_cost is None and judged and (new or result.findings_resolved):
        yield "what these findings cost is not known, so only their number counts"


def _describe_cost(findings: tuple[ProblemPart, ...]) -> str:
    """Return the traffic or time of findings with a leading comma; what is not known is not counted as 0."""
    times = [one.ms_per_step for one in findings if one.ms_per_step is not None]
    if len(times) == len(findings):
        return f", {format_ms(sum(times))} a step"
    sizes = [one.bytes_per_step for one in findings if one.bytes_per_step is not None]
    unknown = len(findings) - len(sizes)
    known = f", {format_byte_count(round(sum(sizes)))} a step" if sizes else ""
    return known + (f", {unknown:,} of unknown cost" if unknown else "")


def _describe_steps(steps: StepChangePart) -> str:
    times = f"{format_ms(steps.before_ms)} -> {format_ms(steps.after_ms)} a step (median of "
    times += f"{steps.before_steps:,} and {format_count(steps.after_steps, 'step')})"
    if steps.change_low is None or steps.change_high is None:
        return f"{times}: too few steps to tell"
    low, high = steps.change_low, steps.change_high
    least, most = sorted((abs(low), abs(high)))
    spread = format_percent(100 * PROCESS_SPREAD)
    match steps.verdict:
        case StepVerdict.FASTER | StepVerdict.SLOWER:
            word = "shorter" if steps.verdict is StepVerdict.FASTER else "longer"
            return (
                f"{times}: {format_percent(100 * abs(steps.change))} {word} ({100 * least:.1f} to {100 * most:.1f} %)"
            )
        case StepVerdict.SAME:
            return f"{times}: no difference beyond the {spread} by which two processes of one program differ"
        case StepVerdict.UNKNOWN:
            return (
                f"{times}: undecided: between {_describe_interval(low, high)}, and two runs of one program differ by "
                f"about {spread}; record more steps, or both again"
            )


def _describe_interval(low: float, high: float) -> str:
    """Return both ends, each with its direction if they differ."""
    ends = [f"{format_percent(100 * abs(end))}" for end in (low, high)]
    first, second = ("shorter" if end < 0 else "longer" for end in (low, high))
    return f"{ends[0]}{'' if first == second else f' {first}'} and {ends[1]} {second}"


def _describe_means(steps: StepChangePart) -> Iterator[str]:
    """Yield the means if their change is another one than the medians', and outside the interval of it."""
    if not steps.before_mean_ms or not steps.after_mean_ms:
        return
    change = steps.after_mean_ms / steps.before_mean_ms - 1.0
    low, high = steps.change_low, steps.change_high
    if low is not None and high is not None and low <= change <= high:
        return
    if abs(math.log((1.0 + change) / (1.0 + steps.change))) > _OTHER_STORY:
        word = "shorter" if change < 0 else "longer"
        yield (
            f"but the means are {format_ms(steps.before_mean_ms)} -> {format_ms(steps.after_mean_ms)}, "
            f"{format_percent(100 * abs(change))} {word}: a few steps take far longer than the rest, and the mean "
            "sets the throughput"
        )


def _yield_labels(result: RunChangeResult) -> Iterator[str]:
    for word, labels in (
        ("resolved", result.labels_resolved),
        ("new", result.labels_new),
        ("kept", result.labels_kept),
    ):
        for one in labels:
            yield f"{word}: {one.label}{_describe_label(one)}"
    for label in result.labels_undecided:
        yield f"cannot tell: {label}, which one of the two does not show"
    for which, too_little in (
        ("first", result.before_recorded_too_little),
        ("second", result.after_recorded_too_little),
    ):
        if too_little:
            yield f"the {which} {_NOUNS[result.kind]} recorded too little to name a bottleneck"


def _describe_label(label: LabelChangePart) -> str:
    if label.before is not None and label.after is not None:
        return f", {format_share(label.before)} -> {format_share(label.after)} of the time"
    return f", {format_share(label.before if label.after is None else label.after)} of the time"


def _describe_share(one: ShareChangePart) -> str:
    sides = ((one.before, one.before_ms), (one.after, one.after_ms))
    before, after = (
        format_share(share) if ms is None else f"{format_ms(ms)} ({format_share(share)})" for share, ms in sides
    )
    return f"{one.name}: {before} -> {after}"


def _describe_kernel(kernel: KernelChangePart) -> str:
    name = clean_line(kernel.name, _NAME)
    if kernel.before is None or kernel.after is None:
        word, used = ("new", kernel.after) if kernel.before is None else ("gone", kernel.before)
        assert used is not None
        return f"{kernel.ms:+.3f} ms  {word}: {name}, {_describe_use(used)}"
    return f"{kernel.ms:+.3f} ms  {name}, {_describe_use(kernel.before)} -> {_describe_use(kernel.after)}"


def _describe_use(used: KernelUsePart) -> str:
    return f"{used.count:.4g}× {format_ms(used.ms)}"


def _print_problems(console: Console, title: str, problems: tuple[ProblemPart, ...], top: int) -> None:
    if not problems:
        return
    print_title(console, title)
    for one in problems[:top]:
        count = "" if one.per_step is None else f", {one.per_step:.4g} a step"
        cost = "" if one.ms_per_step is None and one.bytes_per_step is None else _describe_cost((one,))
        print_wrapped(console, f"{one.rule} {one.title} ({clean_line(one.place, _NAME)}{count}{cost})")
    print_more(console, len(problems), top)
