"""Diagnose a product of matrices that does not use the tensor cores, or uses few of them.

- Source, for: matrices are multiplied term by term (certain); sizes that tensor cores do not support (hint).
- Source, against: it calls wmma or mma (certain).
- PTX, for: no tensor instruction (certain), if another layer sees a product of matrices.
- PTX, against: tensor instructions (certain).
- Counters, for: a product of matrices with the tensor pipe below 30 % (measured); the pipe of any kernel, if another
  layer sees a product.
- Counters, against: the pipe at 30 % or more (measured).
- Profiler, for: the name of a library kernel without tensor cores (certain).
- Profiler, against: the name of one for them (certain).
"""

from __future__ import annotations

from collections.abc import Iterator

from frx_graph.analyzers.cuda.finding import uses_tensor_cores
from frx_graph.analyzers.kernels.analysis import LabelledKernel
from frx_graph.analyzers.kernels.labels import TENSOR_PIPE_PCT
from frx_graph.analyzers.kernels.ptx_analysis import StaticKernel
from frx_graph.analyzers.kernels.speed_of_light import Bound, judge_speed_of_light
from frx_graph.analyzers.reconcile.matched_kernels import RunKernel, SourceKernel
from frx_graph.analyzers.reconcile.signal import DiagnosisRule, Grade, Layer, Signal, Weight, signal_counter
from frx_graph.evidence.ncu.presets import Preset

_LABEL = "tensor_core_underutilized"
_CAPABILITIES = frozenset({"tensor_cores", "wgmma", "tcgen05"})


def _inspect_source(source: SourceKernel) -> Iterator[Signal]:
    if source.kernel is not None and uses_tensor_cores(source.kernel):
        said = "it calls for tensor cores, or may in assembly"
        yield Signal(Layer.SOURCE, "tensor_cores", False, Grade.CERTAIN, said)


def _inspect_ptx(kernel: StaticKernel) -> Iterator[Signal]:
    if kernel.function.capabilities & _CAPABILITIES:
        yield Signal(Layer.PTX, "tensor_cores", False, Grade.CERTAIN, "the compiled kernel has tensor instructions")
    elif not kernel.function.calls:
        said = "the compiled kernel has no tensor instruction"
        yield Signal(Layer.PTX, "no_tensor_cores", True, Grade.CERTAIN, said, alone=False)


def _inspect_counters(kernel: LabelledKernel, _source: SourceKernel | None) -> Iterator[Signal]:
    pipe = kernel.summary.values.get("tensor_pipe")
    if pipe is None or any(label.label == _LABEL for label in kernel.labels):
        return
    said = f"tensor pipe at {pipe:.1f} %"
    if pipe >= TENSOR_PIPE_PCT:
        yield signal_counter("tensor_pipe", said, supports=False)
    elif judge_speed_of_light(kernel.summary.values, kernel.summary.rules).bound is not Bound.MEMORY:
        yield signal_counter("tensor_pipe", said, supports=True, alone=False)


def _inspect_run(run: RunKernel) -> Iterator[Signal]:
    if run.total.tensor_cores is None:
        return
    past = "past" if run.total.tensor_cores is False else "on"
    said = f"by its name it is a library's {run.total.family.value} {past} the tensor cores"
    yield Signal(Layer.PROFILER, "kernel_name", not run.total.tensor_cores, Grade.CERTAIN, said)


DIAGNOSIS = DiagnosisRule(
    name="tensor_cores_unused",
    title="Tensor cores unused",
    told_by=frozenset(Layer),
    decides=Preset(
        "tensor",
        "how busy the tensor cores are",
        ("compute_throughput", "memory_throughput", "tensor_pipe", "achieved_occupancy"),
    ),
    findings={
        "fp32_only_matmul": Weight(Grade.CERTAIN),
        "missing_wmma_mma_path": Weight(Grade.CERTAIN),
        "dimensions_not_tensor_core_friendly": Weight(Grade.HINT),
    },
    labels={_LABEL: Weight(Grade.MEASURED)},
    inspect_source=_inspect_source,
    inspect_ptx=_inspect_ptx,
    inspect_counters=_inspect_counters,
    inspect_run=_inspect_run,
)
