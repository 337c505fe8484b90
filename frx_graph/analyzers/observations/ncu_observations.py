"""Read layout work from Nsight Compute exports: conversions, copies, and uncoalesced kernels.

NVTX ranges name the operator of a kernel. Those of `torch.autograd.profiler.emit_nvtx(record_shapes=True)` have its
shapes; others may name modules. Without ranges, a kernel's name gives its purpose and, for ATen's elementwise kernels,
the number of elements.
"""

from __future__ import annotations

import re
from typing import TypeAlias

from frx_graph.analyzers.kernels.kernel_totals import KernelTotals
from frx_graph.analyzers.kernels.labels import label_kernel
from frx_graph.analyzers.observations.observation import (
    ANY_KIND,
    CONVERSIONS,
    COPIES,
    ElementCount,
    Observation,
    ObservedCall,
    RunFile,
    RunSetting,
    Work,
    derive_roles,
)
from frx_graph.analyzers.trace.analysis import sum_known
from frx_graph.analyzers.trace.kernel_names import CONVERSIONS as CONVERSION_KERNELS
from frx_graph.analyzers.trace.kernel_names import classify_kernel, is_compiled_copy
from frx_graph.analyzers.trace.operators import COPY, EXPLICIT, RESHAPES, is_hot_name
from frx_graph.capture.captured_graph import Phase
from frx_graph.evidence.ncu.launch import Dimensions, KernelLaunch
from frx_graph.evidence.trace.events import Operand
from frx_graph.records import CopyKind

_TORCH_RANGE = re.compile(
    r"(?P<name>[A-Za-z_]\w*::\w+(?:\.\w+)?)(?:, seq = \d+)?(?:, op_id = \d+)?(?:, sizes = (?P<sizes>\[.*\]))?"
    r"(?:, input_op_ids = \[.*\])?"
)
"""Format of `getNvtxStr` in torch/csrc/profiler/util.cpp: `aten::conv2d, seq = 3, sizes = [[8, 3, 9, 9], []]`."""
_LONGEST = 4096
"""Characters of a name that are parsed; an operator with a hundred operands has as many."""
_ONE_SHAPE = r"\[(?:[0-9]{1,18}(?:, [0-9]{1,18})*)?\]"
_SIZES = re.compile(rf"\[(?:{_ONE_SHAPE}(?:, {_ONE_SHAPE})*)?\]")
_SHAPE = re.compile(r"\[([0-9, ]*)\]")
_BACKWARD = re.compile(r"autograd::engine::evaluate_function: .*|\w+Backward\d+(?:, .*)?")
_ELEMENTWISE = re.compile(
    r"(?:^|[ :])(?:elementwise|unrolled_elementwise)_kernel<(?P<threads>\d{1,4}), (?P<each>\d{1,3}),"
)
"""`elementwise_kernel<nt, vt, …>` of ATen's CUDALoops.cuh: each block of `nt` threads takes `nt * vt` elements, and the
grid is just large enough."""
_TOLD = frozenset(
    {"duration", "sectors_per_load", "load_sectors", "load_requests", "dram_bytes_read", "dram_throughput"}
)
"""Metrics that become facts of a finding, if they were measured."""

_Alike: TypeAlias = tuple[
    str, tuple[ObservedCall, ...], tuple[str, ...], Phase | None, Dimensions | None, Dimensions | None
]


class NcuObserver:
    """Gathers launches as they are read; memory grows with kinds of launches, not with their number."""

    def __init__(self) -> None:
        self._alike: dict[_Alike, tuple[KernelLaunch, KernelTotals]] = {}

    def add(self, launch: KernelLaunch) -> None:
        """Add a launch."""
        calls, ranges, phase = _split_ranges(launch.ranges)
        key = (launch.kernel, calls, ranges, phase, launch.grid, launch.block)
        if key not in self._alike:
            self._alike[key] = launch, KernelTotals()
        self._alike[key][1].add(launch)

    def build_run_file(self, source: str) -> RunFile:
        """Return all observations. An export may have left launches out, so silence in it proves nothing."""
        found = [_observe_launches(key, *launches) for key, launches in self._alike.items()]
        seen = tuple(observation for observation in found if observation is not None)
        compiled = any(kernel.startswith("triton_") for kernel, *_ in self._alike)
        return RunFile(source, RunSetting("cuda", compiled or None), seen)


def _observe_launches(key: _Alike, first: KernelLaunch, totals: KernelTotals) -> Observation | None:
    kernel, calls, ranges, phase, grid, _ = key
    summaries = totals.summarize_kernels()
    uncoalesced = next((label for label in label_kernel(summaries[0]) if label.label == "uncoalesced_access"), None)
    if classify_kernel(kernel) in CONVERSION_KERNELS:
        work = Work.CONVERSION
    elif "direct_copy_kernel" in kernel or is_compiled_copy(kernel):
        work = Work.COPY
    elif uncoalesced is not None:
        work = Work.UNCOALESCED
    else:
        return None
    return Observation(
        work=work,
        kernels=(kernel,),
        where=f"line {first.line}" if first.line is not None else f"launch {first.number}",
        count=sum(one.launches for one in summaries),
        calls=calls,
        ranges=ranges,
        copied=_find_copied(calls),
        elements=_count_elements(kernel, grid),
        kinds=_list_kinds(work, calls),
        roles=derive_roles([kernel], phase),
        phase=phase,
        seconds=sum_known(one.seconds for one in summaries),
        measurements=tuple(fact for fact in first.list_measurements() if fact.metric in _TOLD),
        detail="" if uncoalesced is None else uncoalesced.evidence,
    )


def _split_ranges(names: tuple[str, ...]) -> tuple[tuple[ObservedCall, ...], tuple[str, ...], Phase | None]:
    """Split range names, the outermost first, into operators, the innermost first, other ranges, and the pass."""
    calls: list[ObservedCall] = []
    ranges: list[str] = []
    backward = False
    for name in names:
        short = len(name) <= _LONGEST
        if short and _BACKWARD.fullmatch(name):
            backward = True
        elif short and (found := _TORCH_RANGE.fullmatch(name)):
            calls.append(ObservedCall(found["name"], _parse_operands(found["sizes"])))
        else:
            ranges.append(name)
    phase = Phase.BACKWARD if backward else Phase.FORWARD if calls else None
    return tuple(reversed(calls)), tuple(ranges), phase


def _parse_operands(sizes: str | None) -> tuple[Operand, ...] | None:
    """Return the shapes of tensors; None without any, or if a list of tensors is among them."""
    if sizes is None or _SIZES.fullmatch(sizes) is None:
        return None
    shapes = [tuple(int(size) for size in text.split(", ") if size) for text in _SHAPE.findall(sizes)]
    return tuple(Operand(shape, None) for shape in shapes if shape) or None


def _find_copied(calls: tuple[ObservedCall, ...]) -> Operand | None:
    """Return the tensor that the innermost operator copies, if it does nothing else."""
    if not calls or calls[0].operator not in EXPLICIT | {COPY}:
        return None
    operands = calls[0].operands or ()
    # `copy_` has the target first.
    return next(iter(operands[1:] if calls[0].operator == COPY else operands), None)


def _count_elements(kernel: str, grid: Dimensions | None) -> ElementCount | None:
    found = _ELEMENTWISE.search(kernel)
    if found is None or grid is None or "direct_copy_kernel" not in kernel:
        return None
    block = int(found["threads"]) * int(found["each"])
    return ElementCount((grid[0] - 1) * block + 1, grid[0] * block)


def _list_kinds(work: Work, calls: tuple[ObservedCall, ...]) -> frozenset[CopyKind | None]:
    if work is not Work.COPY:
        return CONVERSIONS if work is Work.CONVERSION else ANY_KIND
    if any(is_hot_name(call.operator) for call in calls):
        return frozenset({CopyKind.OPERATOR})
    for names, kind in ((RESHAPES, CopyKind.RESHAPE), (EXPLICIT, CopyKind.EXPLICIT)):
        if any(call.operator in names for call in calls):
            return frozenset({kind})
    return COPIES
