"""Turn a captured program into ranked findings: facts, predicted copies, measurements, detectors."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from frx_graph.advice import Advice, Timings
from frx_graph.advisor.absent_gpu import describe_absent, place_on_absent_gpu, profile_documented_gpu
from frx_graph.advisor.compiled_modules import find_compiled_modules
from frx_graph.advisor.evidence_files import read_run_file
from frx_graph.advisor.observe import check_observable, observe_step
from frx_graph.advisor.summary import (
    describe_environment,
    refuse_breaks,
    refuse_unknown,
    sum_copies,
    summarize_graph,
)
from frx_graph.analyzers.observations.corroboration import corroborate_findings
from frx_graph.analyzers.observations.observation import RunFile, RunSetting
from frx_graph.capture.absent_gpu import capture_for
from frx_graph.capture.call_site import CallSite
from frx_graph.capture.captured_graph import Capture, CapturedGraph, get_frame_id
from frx_graph.capture.dynamo_events import count_cudagraph_skips
from frx_graph.capture.model import capture_model
from frx_graph.capture.model_call import check_call
from frx_graph.errors import NOT_THE_MODELS, FrxError, OptionError, suggest_remedy, summarize_error
from frx_graph.facts.build import build_graph_facts
from frx_graph.facts.graph_facts import GraphFacts
from frx_graph.facts.operator_signature import OperatorSignature
from frx_graph.fix.model_class import find_forwards
from frx_graph.fix.offers import offer_fixes
from frx_graph.measure.machine.device_calibration import read_last_level_cache
from frx_graph.measure.machine.device_profile import DeviceProfile, raise_peaks
from frx_graph.measure.machine.device_profile_cache import get_device_profile
from frx_graph.measure.measurement_cache import MeasuredOperators
from frx_graph.measure.operators.operator_contract import (
    ContractRow,
    OperatorContract,
    load_contract,
    load_documented_contract,
)
from frx_graph.measure.page_faults import AllocationCost
from frx_graph.options import check_inner
from frx_graph.passes.analysis import Analysis, CompileEvents, PrecisionSettings
from frx_graph.passes.copies.prediction import list_signatures_to_measure, predict_copies
from frx_graph.passes.costs.operator_costs import count_step_traffic
from frx_graph.passes.costs.working_set import estimate_working_set
from frx_graph.passes.detectors import DETECTORS
from frx_graph.passes.layouts.regions import list_anchor_signatures
from frx_graph.passes.severity import rank_findings
from frx_graph.records import HIDDEN_KINDS, Finding, Refusal
from frx_graph.reports.advice.render import AdviceReport
from frx_graph.rules.gpu_profile import GpuProfile, require_gpu
from frx_graph.support.garbage_collection import pause_gc

_Known = TypeVar("_Known")

Progress = Callable[[str], None]
"""Called with a few words when a stage begins."""
CostAllocations = Callable[[], AllocationCost | Refusal]
"""Measures the page faults of the advised program, or says why they are unknown."""


@dataclass(frozen=True)
class _PreparedGraph:
    """One graph. `calls` whose inner copies must be known, and `anchors` to time in both layouts, are by node."""

    facts: GraphFacts
    inner: str
    calls: Mapping[str, OperatorSignature]
    anchors: Mapping[str, OperatorSignature]


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
    evidence: Sequence[str | Path] = (),
    progress: Progress = lambda _stage: None,
    cost_allocations: CostAllocations | None = None,
    builder: CallSite | None = None,
    device: str | None = None,
) -> AdviceReport:
    """Return ranked layout fixes for one call of `model(*args, **kwargs)`.

    The call is run: parameters, buffers, gradients, random generators and training modes are restored afterwards, other
    state of the program is not (`frx_graph.capture.state_snapshot`).

    With `train` the backward is analysed, too; with `observe` one real step is run and its copies are shown beside the
    predicted ones. `measure` allows short separate runs of operators if the operator layout contract does not settle
    their behaviour. `inner` is the compiler that the program will run under. `evidence` are files of runs of this
    program (profiler traces, Nsight Compute exports, oneDNN logs, code that Inductor has written): their evidence
    raises or lowers the confidence of findings. `cost_allocations` measures the program's page faults in fresh
    processes, which rule FRX018 needs; it is called for a program on the CPU. `builder` is the function that has built
    the model, for fixes of settings in it.

    With `device`, the advice is for a GPU of that name (`h100`, `l4`), which need not be here. The model is copied with
    tensors that have no memory, and nothing is run or measured: what the GPU does is taken from torch's source and the
    maker's documentation.

    Raises `EvidenceError` for a file that cannot be read, `TargetError` if the model itself raises or the call cannot
    be made, `CaptureError` if nothing of it can be captured, `OptionError` for an unknown `inner` or GPU.
    """
    check_inner(inner)
    gpu = None if device is None else require_gpu(device)
    if gpu is not None and observe:
        raise OptionError(f"a step on {gpu.name} cannot be observed here", "leave out observe")
    if observe:
        check_observable(inner)
    check_call(model, args, kwargs)
    name = target or type(model).__name__
    seen = []
    # Each file once, under the first name given, however its path is spelled.
    by_place: dict[str, Path] = {}
    for file in evidence:
        by_place.setdefault(os.path.realpath(file), Path(file))
    for path in by_place.values():
        progress(f"reading {path}")
        seen.append(read_run_file(path))
    started = time.perf_counter()
    progress("capturing the model")
    if gpu is None:
        capture = capture_model(model, args, kwargs, train=train, origin=name, as_eager=inner == "eager")
    else:
        absent = place_on_absent_gpu(model, args, kwargs)
        with absent.mode, capture_for(describe_absent(gpu)):
            capture = capture_model(
                absent.model, absent.args, absent.kwargs, train=train, origin=name, as_eager=inner == "eager"
            )
    captured_s = time.perf_counter() - started
    report = advise_capture(
        capture,
        target=name,
        inner=inner,
        measure=measure and gpu is None,
        gpu=gpu,
        evidence=seen,
        cost_allocations=cost_allocations,
        progress=progress,
        forwards=find_forwards(model),
        builder=builder,
        compiled_modules=find_compiled_modules(model),
    )
    advice = replace(report.advice, timings=replace(report.advice.timings, capture_s=captured_s))
    if observe:
        progress("observing one real step")
        started = time.perf_counter()
        try:
            observed = observe_step(model, args, dict(kwargs or {}), train=train, inner=inner)
        except (FrxError, *NOT_THE_MODELS):
            raise
        except BaseException as error:  # noqa: BLE001 - the advice is valid without it, and says what is missing
            remedy = suggest_remedy(error)
            reason = f"the step could not be observed: {summarize_error(error)}{f' ({remedy})' if remedy else ''}"
            unseen = Refusal("observation", reason)
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
    gpu: GpuProfile | None = None,
    evidence: Sequence[RunFile] = (),
    progress: Progress = lambda _stage: None,
    cost_allocations: CostAllocations | None = None,
    forwards: Mapping[str, CallSite] | None = None,
    builder: CallSite | None = None,
    compiled_modules: frozenset[str] = frozenset(),
) -> AdviceReport:
    """Return advice on graphs that are already captured and that one step runs, each as often as its `calls` say.

    `inner` is the compiler of the graphs that name none themselves; `evidence` is the content of files of runs. `gpu`
    is the one that graphs of fake tensors are for.
    `cost_allocations` measures the program's page faults. `forwards` has each module's `forward` by the module's path,
    and `builder` is the function that has built the model, for fixes of their source. `compiled_modules` are the paths
    of modules that the program compiles by itself.
    """
    started = time.perf_counter()
    # Facts and findings are millions of small objects without cycles: searching them takes a third of the time.
    with pause_gc():
        subjects = [_prepare_graph(graph, inner) for graph in capture.graphs]
    device = _choose_device(subject.facts for subject in subjects)
    measured, measure_s = MeasuredOperators(device.type), None
    if measure:
        progress("measuring operators")
        begin = time.perf_counter()
        measured.measure(
            (signature for subject in subjects for signature in subject.calls.values()),
            (signature for subject in subjects for signature in subject.anchors.values()),
            resident=device.type == "cpu" and _fits_in_cache([subject.facts for subject in subjects]),
        )
        measure_s = time.perf_counter() - begin
    allocation_cost: AllocationCost | Refusal | None = None
    if cost_allocations is not None and device.type == "cpu":
        progress("counting page faults in fresh processes")
        begin = time.perf_counter()
        allocation_cost = cost_allocations()
        measure_s = (measure_s or 0.0) + time.perf_counter() - begin
    profile: DeviceProfile | None = None
    no_profile: list[Refusal] = []
    if gpu is not None:
        profile = profile_documented_gpu(gpu)
        if profile is None:
            no_profile.append(Refusal("device profile", f"bandwidth and peaks of {gpu.name} are not listed"))
        contract = load_documented(gpu)
    else:
        try:
            profile = get_device_profile(device, measure=measure)
        except FrxError as error:
            no_profile.append(Refusal("device profile", str(error)))
        contract = load_contract(device.type, torch.__version__)

    progress("looking for layout problems")
    with pause_gc():
        analyses = [
            replace(analysis, compiled_modules=compiled_modules)
            for analysis in _analyze_graphs(subjects, capture, measured, profile, contract, gpu)
        ]
        if analyses and isinstance(allocation_cost, AllocationCost):
            analyses[0] = replace(analyses[0], allocation_cost=allocation_cost)
        if profile is not None:
            raised = raise_peaks(profile, [speed for analysis in analyses for speed in analysis.reached_speeds])
            if raised is not profile:
                profile, analyses = raised, [replace(analysis, device=raised) for analysis in analyses]
        outcomes = [outcome for analysis in analyses for outcome in _run_detectors(analysis)]
        summaries = tuple(map(summarize_graph, analyses))
    findings = [outcome for outcome in outcomes if isinstance(outcome, Finding)]
    graphs = {subject.facts.graph_id: subject.facts for subject in subjects}
    findings, belonging_to_none = corroborate_findings(
        findings, graphs, evidence, RunSetting(device.type, inner == "inductor")
    )
    refusals = [
        *(Refusal(failure.subject, failure.reason, site=failure.site) for failure in capture.failures),
        *refuse_breaks(capture),
        *(
            Refusal(signature.target, f"could not be run separately to find its copies: {reason}")
            for signature, reason in measured.failures.items()
        ),
        *no_profile,
        *([allocation_cost] if isinstance(allocation_cost, Refusal) else []),
        *(outcome for outcome in outcomes if isinstance(outcome, Refusal)),
        *belonging_to_none,
    ]
    elapsed = time.perf_counter() - started
    inners = ", ".join(dict.fromkeys(subject.inner for subject in subjects)) or inner
    return AdviceReport(
        Advice(
            target=target,
            environment=describe_environment(
                device, profile, inner=inners, contract=contract.name if contract else None, gpu=gpu
            ),
            graphs=summaries,
            findings=offer_fixes(
                rank_findings(findings), {one.facts.graph_id: one for one in analyses}, forwards, builder
            ),
            refusals=tuple(dict.fromkeys(refusals)),
            copies=tuple(copy for analysis in analyses for copy in analysis.copies),
            totals=sum_copies(analyses, findings),
            timings=Timings(capture_s=None, analysis_s=elapsed - (measure_s or 0.0), measure_s=measure_s),
        )
    )


def load_documented(gpu: GpuProfile) -> OperatorContract | None:
    """Return what is documented of operators on a GPU; None for AMD's."""
    if gpu.architecture.limits is None:
        return None
    contract = load_documented_contract("cuda", tf32=_read_precision("cuda", gpu).cudnn_tf32)
    if gpu.runs_bfloat16:
        return contract

    def forget_bfloat16(row: ContractRow) -> ContractRow:
        is_forgotten = row.dtype is torch.bfloat16 and "convolution" in row.target
        return replace(row, entry=None) if is_forgotten else row

    return replace(contract, rows=tuple(map(forget_bfloat16, contract.rows)))


def _read_precision(device: str, gpu: GpuProfile | None) -> PrecisionSettings:
    """Return torch's switches, as far as the GPU that the advice is for can do what they allow."""
    settings = PrecisionSettings.read_current(device)
    if gpu is None or gpu.runs_tf32:
        return settings
    return replace(settings, matmul_tf32=False, cudnn_tf32=False, has_tf32=False)


def _choose_device(graphs: Iterable[GraphFacts]) -> torch.device:
    """Return the accelerator if any value is on one, else the CPU."""
    devices = {value.device for facts in graphs for value in facts.values.values()}
    accelerators = sorted((d for d in devices if d.type not in ("cpu", "meta")), key=str)
    return accelerators[0] if accelerators else torch.device("cpu")


def _fits_in_cache(graphs: Iterable[GraphFacts]) -> bool:
    """Return True if what a step reads and writes stays in half of the processor's last cache, which it shares."""
    return sum(map(estimate_working_set, graphs)) <= read_last_level_cache() // 2


def _prepare_graph(graph: CapturedGraph, inner: str) -> _PreparedGraph:
    facts = build_graph_facts(graph)
    compiler = graph.inner or inner
    return _PreparedGraph(facts, compiler, list_signatures_to_measure(facts, compiler), list_anchor_signatures(facts))


def _analyze_graphs(
    subjects: Sequence[_PreparedGraph],
    capture: Capture,
    measured: MeasuredOperators,
    profile: DeviceProfile | None,
    contract: OperatorContract | None,
    gpu: GpuProfile | None,
) -> list[Analysis]:
    skips = count_cudagraph_skips() if any(subject.inner == "inductor" for subject in subjects) else 0
    events = CompileEvents(breaks=capture.breaks, recompiles=capture.recompiles, cudagraph_skips=skips)
    # Events of a frame are reported once, with its last version.
    last_version = {get_frame_id(subject.facts.graph_id): subject for subject in subjects}
    measurements = [_look_up_known(subject.calls, measured.measurement) for subject in subjects]
    copies = [
        predict_copies(subject.facts, known, contract, subject.inner)
        for subject, known in zip(subjects, measurements, strict=True)
    ]
    step_bytes = sum(
        subject.facts.calls * count_step_traffic(subject.facts)
        + sum(copy.bytes for copy in predicted if copy.kind in HIDDEN_KINDS)
        for subject, predicted in zip(subjects, copies, strict=True)
    )
    return [
        Analysis(
            facts=subject.facts,
            copies=predicted,
            step_bytes=step_bytes,
            inner=subject.inner,
            device=profile,
            layout_times=_look_up_known(subject.anchors, measured.layout_times),
            measurements=known,
            events=events if last_version[get_frame_id(subject.facts.graph_id)] is subject else CompileEvents(),
            precision=_read_precision(_choose_device([subject.facts]).type, gpu),
            contract=contract,
            loaded=measured.loaded,
        )
        for subject, known, predicted in zip(subjects, measurements, copies, strict=True)
    ]


def _look_up_known(
    calls: Mapping[str, OperatorSignature], lookup: Callable[[OperatorSignature], _Known | None]
) -> dict[str, _Known]:
    return {node: known for node, signature in calls.items() if (known := lookup(signature)) is not None}


def _run_detectors(analysis: Analysis) -> Iterator[Finding | Refusal]:
    yield from refuse_unknown(analysis)
    for detector in DETECTORS:
        for outcome in detector.detect(analysis):
            if isinstance(outcome, Finding):
                yield replace(outcome, graph_id=analysis.facts.graph_id)
            else:
                yield outcome
