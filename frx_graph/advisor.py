"""The street: a program is captured, its facts built, its copies predicted, its problems found and ranked."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch

from frx_graph.advice import Advice, GraphSummary, Timings, Totals, is_quick_win
from frx_graph.capture.call_check import check_call
from frx_graph.capture.captured_graph import Capture, CapturedGraph
from frx_graph.capture.dynamo_reason import short_reason
from frx_graph.capture.model import capture_model
from frx_graph.environment import environment_of
from frx_graph.errors import NOT_THE_MODELS, FrxError, first_line
from frx_graph.evidence.device_calibration import device_profile
from frx_graph.evidence.device_profile import DeviceProfile
from frx_graph.evidence.measurement_cache import MeasuredOperators
from frx_graph.facts.build import build_graph_facts
from frx_graph.facts.graph_facts import GraphFacts
from frx_graph.facts.operator_signature import OperatorSignature
from frx_graph.observe import check_observable, observe_step
from frx_graph.options import check_inner
from frx_graph.passes.analysis import Analysis, CompileEvents, PrecisionSettings
from frx_graph.passes.copies.prediction import predict_copies, signatures_to_measure, unknown_operators
from frx_graph.passes.costs.operator_costs import roofline_points, step_traffic
from frx_graph.passes.detectors import DETECTORS
from frx_graph.passes.layouts.regions import anchor_signatures
from frx_graph.passes.ranking import rank
from frx_graph.passes.spans import layout_spans
from frx_graph.records import HIDDEN_KINDS, Copy, Finding, Refusal
from frx_graph.reports.advice_report import AdviceReport
from frx_graph.rules.operator_contract import OperatorContract, load_contract

_Known = TypeVar("_Known")

Progress = Callable[[str], None]
"""Called with a few words when a stage begins."""


def advise(
    model: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    train: bool = False,
    observe: bool = False,
    inner: str = "eager",
    measure: bool = True,
    target: str | None = None,
    progress: Progress = lambda _stage: None,
) -> AdviceReport:
    """Ranked layout fixes for one call of `model(*args, **kwargs)`; nothing of the model is changed.

    With `train` the backward is analysed, too; with `observe` one real step is run and its copies are shown beside the
    predicted ones. `measure` lets operators be run by themselves for a moment where the operator layout contract does
    not settle what they do. `inner` is the compiler that the program will run under. Raises `TargetError` if the model
    itself raises or the call cannot be made, `CaptureError` if nothing of it can be captured, `OptionError` for an
    unknown `inner`.
    """
    check_inner(inner)
    if observe:
        check_observable(inner)
    check_call(model, args, kwargs)
    name = target or type(model).__name__
    started = time.perf_counter()
    progress("capturing the model")
    # What is compiled leaves its graph at a recurrent layer; in eager the layer is operators like any others.
    capture = capture_model(model, args, kwargs, train=train, origin=name, through_recurrent=inner == "eager")
    captured_s = time.perf_counter() - started
    report = advise_capture(capture, target=name, inner=inner, measure=measure, progress=progress)
    advice = replace(report.advice, timings=replace(report.advice.timings, capture_s=captured_s))
    if observe:
        progress("observing one real step")
        started = time.perf_counter()
        try:
            observed = observe_step(model, args, dict(kwargs or {}), train=train, inner=inner)
        except FrxError:
            raise
        except NOT_THE_MODELS:
            raise
        except BaseException as error:  # noqa: BLE001 - the advice stands without it; what is missing is said
            unseen = Refusal("observation", f"the step could not be watched: {first_line(error)}")
            advice = replace(advice, refusals=(*advice.refusals, unseen))
        else:
            advice = replace(advice, observed=observed)
        advice = replace(advice, timings=replace(advice.timings, observe_s=time.perf_counter() - started))
    return AdviceReport(advice)


def advise_capture(
    capture: Capture,
    *,
    target: str,
    inner: str = "eager",
    measure: bool = True,
    progress: Progress = lambda _stage: None,
) -> AdviceReport:
    """Advice on graphs that are already captured and that one step runs, each as often as its `calls` say.

    `inner` is the compiler of the graphs that do not name one themselves.
    """
    started = time.perf_counter()
    refusals = [Refusal(f.subject, f.reason, site=f.site) for f in capture.failures]
    refusals.extend(_between_graphs(capture))
    with _collector_paused():
        facts_of = {graph.graph_id: build_graph_facts(graph) for graph in capture.graphs}
        inner_of = {graph.graph_id: graph.inner or inner for graph in capture.graphs}
        calls_of = {graph_id: signatures_to_measure(facts, inner_of[graph_id]) for graph_id, facts in facts_of.items()}
        anchors_of = {graph_id: anchor_signatures(facts) for graph_id, facts in facts_of.items()}
    speaks_for_frame = {_frame(graph_id): graph_id for graph_id in facts_of}
    device = _device(facts_of.values())

    measure_s = None
    measured = MeasuredOperators(device.type)
    if measure:
        progress("measuring operators")
        begin = time.perf_counter()
        measured.measure(
            (signature for calls in calls_of.values() for signature in calls.values()),
            (signature for anchors in anchors_of.values() for signature in anchors.values()),
        )
        measure_s = time.perf_counter() - begin
        refusals.extend(
            Refusal(signature.target, f"could not be run by itself to see what it copies: {reason}")
            for signature, reason in measured.failures.items()
        )
    profile, profile_refusal = _profile(device, measure=measure)
    refusals.extend(profile_refusal)
    contract = load_contract(device.type, torch.__version__)

    progress("looking for layout problems")
    skips = _cudagraph_skips() if "inductor" in inner_of.values() else 0
    events = CompileEvents(breaks=capture.breaks, recompiles=capture.recompiles, cudagraph_skips=skips)
    findings: list[Finding] = []
    summaries: list[GraphSummary] = []
    with _collector_paused():
        measurements_of = {graph_id: _known(calls, measured.measurement) for graph_id, calls in calls_of.items()}
        copies_of = {
            graph_id: predict_copies(facts, measurements_of[graph_id], contract, inner_of[graph_id])
            for graph_id, facts in facts_of.items()
        }
        step_bytes = sum(_step_bytes(facts, copies_of[graph_id]) for graph_id, facts in facts_of.items())
        for graph_id, facts in facts_of.items():
            # What happened to a frame is told once, by the last of its versions.
            own_events = events if speaks_for_frame[_frame(graph_id)] == graph_id else CompileEvents()
            analysis = Analysis(
                facts=facts,
                copies=copies_of[graph_id],
                step_bytes=step_bytes,
                inner=inner_of[graph_id],
                device=profile,
                layout_times=_known(anchors_of[graph_id], measured.layout_times),
                measurements=measurements_of[graph_id],
                events=own_events,
                precision=PrecisionSettings.current(_device([facts]).type),
                contract=contract,
            )
            refusals.extend(_unknown(analysis, contract))
            for detector in DETECTORS:
                for outcome in detector.detect(analysis):
                    if isinstance(outcome, Finding):
                        findings.append(replace(outcome, graph_id=graph_id))
                    else:
                        refusals.append(outcome)
            summaries.append(_summary(analysis))
    copies = tuple(copy for predicted in copies_of.values() for copy in predicted)
    elapsed = time.perf_counter() - started
    return AdviceReport(
        Advice(
            target=target,
            environment=environment_of(
                device,
                profile,
                inner=", ".join(dict.fromkeys(inner_of.values())) or inner,
                contract=contract.name if contract else None,
            ),
            graphs=tuple(summaries),
            findings=rank(findings),
            refusals=tuple(dict.fromkeys(refusals)),
            copies=copies,
            totals=_totals(facts_of.values(), findings, copies, step_bytes),
            timings=Timings(capture_s=None, analysis_s=elapsed - (measure_s or 0.0), measure_s=measure_s),
        )
    )


def current_versions(capture: Capture) -> Capture:
    """Of the versions of a frame that were compiled for the same parameters, the last one that trains, else the last.

    They were made for inputs of several steps; versions for other parameters are other modules, and run in the same
    step. A program that was compiled again after a reset counts once.
    """
    latest: dict[tuple[str, tuple[int, ...]], CapturedGraph] = {}
    for graph in capture.graphs:
        key = (_frame(graph.graph_id), graph.parameters)
        if graph.train or key not in latest or not latest[key].train:
            latest[key] = graph
    distinct = {_program(graph): graph for graph in latest.values()}
    return replace(capture, graphs=tuple(distinct.values()))


def _between_graphs(capture: Capture) -> list[Refusal]:
    """Each place where the program leaves its graphs, once; several without a known line are told apart by reason."""
    places: dict[tuple[object, ...], Refusal] = {}
    for found in capture.breaks:
        reason = short_reason(found.reason)
        refusal = Refusal("graph break", f"what runs between the graphs is not seen: {reason}", site=found.site)
        places.setdefault(found.site.location if found.site.line else (reason,), refusal)
    return list(places.values())


def _frame(graph_id: str) -> str:
    return graph_id.partition("/")[0]


def _program(graph: CapturedGraph) -> tuple[object, ...]:
    """What two compilations of one program share: operators, call sites, input shapes, parameters."""
    nodes = graph.aten.graph.nodes
    shapes = (str(getattr(node.meta.get("val"), "shape", None)) for node in nodes if node.op == "placeholder")
    return (*((str(node.target), graph.sites.get(node.name)) for node in nodes), *shapes, *graph.parameters)


def _device(graphs: Iterable[GraphFacts]) -> torch.device:
    """The accelerator if any value lies on one, else the CPU."""
    devices = {value.device for facts in graphs for value in facts.values.values()}
    accelerators = sorted((d for d in devices if d.type not in ("cpu", "meta")), key=str)
    return accelerators[0] if accelerators else torch.device("cpu")


def _profile(device: torch.device, *, measure: bool) -> tuple[DeviceProfile | None, list[Refusal]]:
    try:
        return device_profile(device, measure=measure), []
    except FrxError as error:
        return None, [Refusal("device profile", str(error))]


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Without searches for cyclic garbage: facts and findings are millions of small objects without cycles, and the
    searches among them would take a third of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _known(
    calls: Mapping[str, OperatorSignature], lookup: Callable[[OperatorSignature], _Known | None]
) -> dict[str, _Known]:
    """What was measured, by node name."""
    found = {node: lookup(signature) for node, signature in calls.items()}
    return {node: known for node, known in found.items() if known is not None}


def _step_bytes(facts: GraphFacts, copies: Iterable[Copy]) -> int:
    return facts.calls * step_traffic(facts) + sum(copy.bytes for copy in copies if copy.kind in HIDDEN_KINDS)


def _summary(analysis: Analysis) -> GraphSummary:
    facts = analysis.facts
    return GraphSummary(
        graph_id=facts.graph_id,
        origin=facts.origin,
        train=facts.train,
        ops=len(facts.ops),
        spans=layout_spans(facts, analysis.copies, analysis.costs),
        roofline=roofline_points(facts, costs=analysis.costs),
    )


def _unknown(analysis: Analysis, contract: OperatorContract | None) -> list[Refusal]:
    """What is counted as no copy although nothing is known about it."""
    strides = "whether it copies such strides is not known here: it is counted as no copy"
    inside = "what it copies inside is not known: it is counted as no copy"
    by_operator: dict[tuple[str, str], list[str]] = {}
    for op in unknown_operators(analysis.facts, analysis.measurements, contract, analysis.inner):
        by_operator.setdefault((op.operator, strides), []).append(op.node)
    for op in analysis.facts.ops:
        if op.opaque:
            by_operator.setdefault((op.operator, inside), []).append(op.node)
    return [Refusal(operator, reason, tuple(nodes)) for (operator, reason), nodes in by_operator.items()]


def _cudagraph_skips() -> int:
    return int(torch._dynamo.utils.counters["inductor"]["cudagraph_skips"])


def _totals(
    graphs: Iterable[GraphFacts], findings: Sequence[Finding], copies: Sequence[Copy], step_bytes: int
) -> Totals:
    copy_bytes = sum(copy.bytes for copy in copies)
    return Totals(
        ops_scanned=sum(len(facts.ops) for facts in graphs),
        copies_per_step=sum(copy.count for copy in copies),
        copy_bytes_per_step=copy_bytes,
        bandwidth_overhead_pct=100.0 * copy_bytes / step_bytes if step_bytes else None,
        quick_wins=sum(map(is_quick_win, findings)),
    )
