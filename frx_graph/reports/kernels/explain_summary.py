"""Render an explanation for people: `frx_summary.txt`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.text import Text

from frx_graph.evidence.kernel_name import shorten_signature
from frx_graph.reports.kernels.explain_document import ExplainDocument, KeyMetricPart, TopKernelPart
from frx_graph.reports.render.quantities import format_percent, format_seconds
from frx_graph.reports.render.recommendation_text import format_step
from frx_graph.reports.render.source_path import cut_path
from frx_graph.reports.render.text_console import make_console, print_command, print_section, print_title
from frx_graph.support.plain_text import clean_line

FIRST_WORDS = "FRX SUMMARY"
"""The first words of the file."""
WIDTH = 80
_NAME = 60
_FINDINGS = 20
NOTHING = "the measurements show no bottleneck"
NOTHING_IN_RUN = "the record shows no bottleneck; `frx advise` looks for layout fixes in the model itself"
TOO_LITTLE = "unknown: too few metrics"
NO_BOUND = "the measurements give no bound"


def render_summary(document: ExplainDocument) -> str:
    """Render the diagnosis, the figures, the fixes, and the metrics that show whether they helped."""
    out, console = make_console(WIDTH, color=False, soft_wrap=True)
    console.print(Text(f"{FIRST_WORDS}  {cut_path(document.evidence_file, WIDTH - len(FIRST_WORDS) - 2)}"))
    for title, lines in yield_sections(document, for_model=False):
        print_section(console, title, lines)
    print_title(console, "MEASURE AGAIN")
    print_command(console, document.reprofile_command)
    return out.getvalue()


def yield_sections(document: ExplainDocument, *, for_model: bool) -> Iterator[tuple[str, Iterable[str]]]:
    """Yield titles and lines of the sections, some without lines; for a language model without names of kernels."""
    of_run = "run" in document.layers_available
    order = f", {'by time' if of_run else 'most promising first'}" if for_model else ""
    yield "PRIMARY DIAGNOSIS", _yield_primary(document)
    yield "SECONDARY ISSUES", _yield_secondary(document)
    kernels = []
    for kernel in document.top_kernels:
        name = "" if for_model else f" {clean_line(shorten_signature(kernel.kernel_name), _NAME)}"
        kernels.append(f"K{kernel.rank}{name}: {_describe_kernel(kernel)}")
    yield f"TOP KERNELS{order}", kernels
    yield "ROOFLINE AND OCCUPANCY of K1", _yield_standing(document)
    if of_run or for_model:
        yield f"KEY METRICS of {'the run' if of_run else 'K1'}", map(_format_metric, document.key_metrics)
    yield "IN THE SOURCE", _yield_source_findings(document)
    yield "SOURCE AND REPORT TOGETHER", _yield_reconciled(document)
    for number, found in enumerate(document.top_recommendations, start=1):
        actions, risks = (f"- {action}" for action in found.actions), (f"Mind: {risk}" for risk in found.risks)
        yield f"FIX {number}: {found.title}", (f"Why: {found.why}", *actions, *risks)
    yield "EXPECTED IMPROVEMENT", _yield_improvements(document)
    yield "VALIDATION TARGETS", _list_targets(document)
    yield "NOT KNOWN", (f"{missing.layer}: {missing.reason}" for missing in document.missing_data)


def _yield_primary(document: ExplainDocument) -> Iterator[str]:
    """Format the primary diagnosis with its evidence."""
    found = document.primary_diagnosis
    if found is None:
        nothing = NOTHING_IN_RUN if "run" in document.layers_available else NOTHING
        yield TOO_LITTLE if document.diagnoses else nothing
        return
    yield f"{found.title} ({found.label}), score {found.score:.2f}, {found.confidence_label} confidence"
    yield from (f"- {evidence}" for evidence in found.evidence)
    if numbers := _list_ranks(document, found.kernels):
        yield f"In {numbers}, most affected first."


def _yield_secondary(document: ExplainDocument) -> Iterator[str]:
    """Format the other labels."""
    primary = document.primary_diagnosis
    for found in document.diagnoses:
        if primary is None or found.label != primary.label:
            yield f"{found.title} ({found.label}), score {found.score:.2f}: {found.evidence[0]}"


def _describe_kernel(kernel: TopKernelPart) -> str:
    """Describe one kernel, without its name."""
    known = (
        ("share of the time", kernel.runtime_share_pct, format_percent),
        ("time", kernel.seconds, format_seconds),
        ("MFU", kernel.mfu_pct, format_percent),
    )
    said = [f"{what} {text(value)}" for what, value, text in known if value is not None]
    if kernel.roofline_region is not None:
        said.append(kernel.roofline_region)
    if kernel.opportunity is not None:
        said.append(f"opportunity {kernel.opportunity} ({kernel.opportunity_score:.2f})")
    if kernel.registers is not None:
        said.append(f"{kernel.registers} registers a thread")
    return ", ".join(said) or "nothing was measured"


def _yield_standing(document: ExplainDocument) -> Iterator[str]:
    """Format roofline region, MFU, occupancy and limiter of the first kernel."""
    roofline, occupancy = document.roofline, document.occupancy_summary
    if roofline is not None:
        yield f"Roofline region: {roofline.region}; MFU: {format_percent(roofline.mfu_pct)}"
        part = "" if roofline.memory_part is None else f" ({roofline.memory_part})"
        memory = f"{format_percent(roofline.memory_pct)}{part}"
        yield f"Compute {format_percent(roofline.compute_pct)}, memory {memory} of the device's peak"
    if occupancy is not None:
        yield (
            f"Occupancy {format_percent(occupancy.achieved_pct)} of at most {format_percent(occupancy.theoretical_pct)}"
        )
        limiters = ", ".join(f"{name} ({share:.0%} of the time)" for name, share in occupancy.limiters.items())
        yield f"Occupancy is limited by: {limiters or 'nothing that was measured'}"


def _format_metric(found: KeyMetricPart) -> str:
    """Format a metric with its threshold."""
    value = "not measured" if found.value is None else f"{found.value:.2f} {found.unit}".rstrip()
    return f"{found.title}: {value}, {found.level.value} ({found.line})"


def _yield_source_findings(document: ExplainDocument) -> Iterator[str]:
    """Yield findings in the source, most severe first, without text of the source."""
    # One line may hold several accesses.
    found = {(one.line, one.label): one for one in document.static_findings if one.layer == "source"}
    for one in tuple(found.values())[:_FINDINGS]:
        where = f"line {one.line}{_format_kernels(document, one.measured_as)}"
        fix = f"{one.fix}" if not one.contradicted else "but the measurement or the compiler contradicts it."
        yield f"{where}: {one.title} ({one.label}, {one.severity}): {fix}"
    if len(found) > _FINDINGS:
        yield f"{len(found) - _FINDINGS} more are in frx_evidence.json."


def _yield_reconciled(document: ExplainDocument) -> Iterator[str]:
    """Yield joint diagnoses of source and report, most certain first."""
    for one in document.reconciled[:_FINDINGS]:
        lines = f", source lines {', '.join(map(str, one.lines))}" if one.lines else ""
        layers = " and ".join(one.layers)
        yield f"{one.title}{_format_kernels(document, one.measured_as)}: {one.confidence}, by {layers}{lines}"


def _yield_improvements(document: ExplainDocument) -> Iterator[str]:
    """Yield the upper bound of each fix, if there is one. Fixes of one bottleneck of a run have the same bound."""
    if "run" in document.layers_available:
        fixes: dict[float | None, list[str]] = {}
        for found in document.top_recommendations:
            fixes.setdefault(found.estimated_speedup_pct_max, []).append(found.title)
        for bound, titles in fixes.items():
            said = NO_BOUND if bound is None else f"at most {bound:.0f} % faster in all, a bound and not a promise"
            yield f"{'; '.join(titles)}: {said}"
        return
    for found in document.top_recommendations:
        most, least = found.estimated_speedup_pct_max, found.estimated_speedup_pct_min
        numbers = _list_ranks(document, found.kernels[:1])
        what = f"{found.title}, in {numbers}" if numbers else found.title
        if most is None:
            yield f"{what}: {NO_BOUND}"
        elif least is None:
            yield f"{what}: at most {most:.0f} % faster, a bound from counters, not a promise"
        else:
            yield f"{what}: {least:.0f} to {most:.0f} % faster"


def _list_targets(document: ExplainDocument) -> list[str]:
    """List the metrics to look at after a change, each once."""
    steps: dict[str, str] = {}
    for found in document.top_recommendations:
        for step in found.validation_steps:
            steps.setdefault(step.metric, format_step(step))
    return list(steps.values())


def _format_kernels(document: ExplainDocument, names: tuple[str, ...]) -> str:
    numbers = _list_ranks(document, names)
    return f" in {numbers}" if numbers else ""


def _list_ranks(document: ExplainDocument, names: tuple[str, ...]) -> str:
    """Format kernels as `K1, K3`, if they are among the top ones."""
    ranks = {kernel.kernel_name: kernel.rank for kernel in reversed(document.top_kernels)}
    return ", ".join(f"K{ranks[name]}" for name in names if name in ranks)
