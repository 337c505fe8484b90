"""Summaries of an analysis for the report: environment, graphs, totals, and what could not be analysed."""

from __future__ import annotations

import platform
from collections import defaultdict
from collections.abc import Sequence

import torch

from frx_graph.advice import Environment, GraphSummary, PeakFlops, Totals, is_quick_win
from frx_graph.capture.captured_graph import Capture
from frx_graph.capture.dynamo_events import shorten_reason
from frx_graph.measure.machine.device_profile import DeviceProfile
from frx_graph.passes.analysis import Analysis
from frx_graph.passes.copies.prediction import find_unknown_operators
from frx_graph.passes.costs.operator_costs import list_roofline_points
from frx_graph.passes.spans import build_layout_spans
from frx_graph.records import Finding, Refusal
from frx_graph.rules.gpu_profile import GpuProfile
from frx_graph.version import __version__


def describe_environment(
    device: torch.device,
    profile: DeviceProfile | None,
    *,
    inner: str,
    contract: str | None,
    gpu: GpuProfile | None = None,
) -> Environment:
    """Return the versions and the device; bandwidth and peaks only if the device was calibrated. `gpu` is the one that
    is not here."""
    name, documented = (device.type, "") if gpu is None else (gpu.name, "bandwidth and peaks are not listed")
    if profile is not None:
        name, documented = profile.name, profile.documented
    peaks = profile.peak_flops if profile is not None else {}
    kernels = profile.peak_kernels if profile is not None else {}
    return Environment(
        frx_version=__version__,
        torch_version=torch.__version__,
        python_version=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        device=str(device),
        device_name=name,
        inner=inner,
        threads=torch.get_num_threads(),
        bandwidth_bytes_per_s=profile.bandwidth_bytes_per_s if profile is not None else None,
        peak_flops=tuple(
            PeakFlops(str(dtype).removeprefix("torch."), flops, kernels.get(dtype)) for dtype, flops in peaks.items()
        ),
        contract=contract,
        calibrated_under_load=profile is not None and profile.under_load,
        documented=documented,
    )


def summarize_graph(analysis: Analysis) -> GraphSummary:
    """Return one graph's counts, layout spans and roofline points."""
    facts = analysis.facts
    return GraphSummary(
        graph_id=facts.graph_id,
        origin=facts.origin,
        train=facts.train,
        ops=len(facts.ops),
        spans=build_layout_spans(facts, analysis.copies, analysis.costs),
        roofline=list_roofline_points(facts, costs=analysis.costs),
    )


def sum_copies(analyses: Sequence[Analysis], findings: Sequence[Finding]) -> Totals:
    """Return the copies per step of all graphs, and their share of the step's traffic."""
    copies = [copy for analysis in analyses for copy in analysis.copies]
    copy_bytes = sum(copy.bytes for copy in copies)
    step_bytes = analyses[0].step_bytes if analyses else 0
    return Totals(
        ops_scanned=sum(len(analysis.facts.ops) for analysis in analyses),
        copies_per_step=sum(copy.count for copy in copies),
        copy_bytes_per_step=copy_bytes,
        bandwidth_overhead_pct=100.0 * copy_bytes / step_bytes if step_bytes else None,
        quick_wins=sum(map(is_quick_win, findings)),
    )


def refuse_breaks(capture: Capture) -> list[Refusal]:
    """Return one refusal for each graph break; breaks without a known line are distinguished by reason."""
    places: dict[tuple[object, ...], Refusal] = {}
    for found in capture.breaks:
        reason = shorten_reason(found.reason)
        refusal = Refusal("graph break", f"code between the graphs is not analysed: {reason}", site=found.site)
        places.setdefault(found.site.location if found.site.line else (reason,), refusal)
    return list(places.values())


def refuse_unknown(analysis: Analysis) -> list[Refusal]:
    """Return the operators that count as making no copy only because nothing is known about them."""
    unknown = find_unknown_operators(analysis.facts, analysis.measurements, analysis.contract, analysis.inner)
    by_operator: dict[tuple[str, str], list[str]] = defaultdict(list)
    for ops, reason in (
        (unknown, "it is unknown here if it copies such strides: it counts as no copy"),
        ((op for op in analysis.facts.ops if op.opaque), "its internal copies are unknown: it counts as no copy"),
    ):
        for op in ops:
            by_operator[op.operator, reason].append(op.node)
    return [Refusal(operator, reason, tuple(nodes)) for (operator, reason), nodes in by_operator.items()]
