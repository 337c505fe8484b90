"""Which kernels a step runs, under names that are the same in every process that runs the same step.

Four sources are read side by side, and one call may appear in several of them: ATen's operators (a composite one and
what it calls), oneDNN's primitives with the implementation that each was dispatched to, the loops that Inductor
generated, and a GPU's kernels.
"""

from __future__ import annotations

import contextlib
import enum
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._autograd import DeviceType, _profiler_enabled
from torch._C._verbose import mkldnn_set_verbose
from torch.profiler import ProfilerActivity, profile

from frx_graph.errors import EvidenceError
from frx_graph.evidence.kernel_name import device_kernel_name, generated_name
from frx_graph.evidence.onednn import Primitive, is_log_line, parse_log
from frx_graph.measure.console_capture import STDERR, STDOUT, CapturedText, captured, not_kineto
from frx_graph.measure.operators.copy_recorder import keeping_events
from frx_graph.measure.operators.operator_events import OperatorEvent, operator_events

_LOG_NOTHING, _LOG_EXECUTION = 0, 1
_LOG_PREFIXES = ("onednn_verbose,", "dnnl_verbose,")
_OPERATOR = re.compile(r"^\w+::\w+$")
"""Dynamo, Inductor and autograd mark their regions as operators, too: without a namespace, or with more than one."""


class Source(enum.StrEnum):
    """Where a kernel was seen."""

    ATEN = "aten"
    ONEDNN = "onednn"
    GENERATED = "generated"
    """By Inductor, for the CPU; a GPU's generated kernels are `DEVICE`'s."""
    DEVICE = "device"


@dataclass(frozen=True, slots=True, order=True)
class Kernel:
    """What was run. `problem` is what oneDNN's log tells about a primitive besides: its kind, direction, types and
    shapes, `convolution forward src:f32:2x3x8x8 wei:f32:4x3x3x3 dst:f32:2x4x6x6`; empty for the other sources."""

    source: Source
    name: str
    problem: str = ""

    @property
    def kind(self) -> str:
        """oneDNN's kind of primitive: `convolution`, `matmul`, `reorder`; empty for the other sources."""
        return self.problem.partition(" ")[0]


@dataclass(frozen=True, slots=True)
class KernelCount:
    """How often a kernel ran in one step."""

    kernel: Kernel
    count: int


@dataclass(frozen=True, slots=True)
class KernelIdentities:
    """The kernels of one step, sorted. `untold` names the sources that could not be read: `onednn` where this build of
    torch is without it or without its log, `device` with a GPU that the profiler cannot watch."""

    kernels: tuple[KernelCount, ...]
    untold: tuple[Source, ...] = ()

    def counts(self, source: Source) -> Counter[str]:
        """How often each name of one source ran."""
        found: Counter[str] = Counter()
        for entry in self.kernels:
            if entry.kernel.source is source:
                found[entry.kernel.name] += entry.count
        return found


def observe_kernels(step: Callable[[], object]) -> KernelIdentities:
    """Run `step` once and list its kernels. It must have been compiled before: what compiling runs are kernels, too,
    and generated loops are counted only where they exist already.

    While it runs, the process's standard output goes to a temporary file, as oneDNN logs there; what others print
    appears afterwards. Raises what `step` raises, and `EvidenceError` where a torch profiler is running already.
    """
    if _profiler_enabled():
        raise EvidenceError("a torch profiler is already running", "stop it before kernels are listed")
    activities = [ProfilerActivity.CPU]
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        activities.append(ProfilerActivity.CUDA)
    profiler = profile(activities=activities, **keeping_events(profile))
    untold: list[Source] = []
    with counted_loops() as loops, _onednn_log(untold) as log:
        with captured(STDERR, not_kineto):
            profiler.start()
        try:
            step()
            if on_gpu:
                torch.cuda.synchronize()
        finally:
            with captured(STDERR, not_kineto):
                profiler.stop()
    results = profiler.profiler
    assert results is not None
    assert results.kineto_results is not None
    found: Counter[Kernel] = Counter()
    for event in operator_events(results.kineto_results.experimental_event_tree()):
        found.update(_operators(event))
    found.update(map(_primitive, parse_log(log.text)))
    found.update({Kernel(Source.GENERATED, name): count for name, count in loops.items()})
    if on_gpu:
        found.update(_device_kernels(results.kineto_results.events()))
        if ProfilerActivity.CUDA not in torch.profiler.supported_activities():
            untold.append(Source.DEVICE)
    return KernelIdentities(
        kernels=tuple(KernelCount(kernel, found[kernel]) for kernel in sorted(found)), untold=tuple(untold)
    )


@contextlib.contextmanager
def _onednn_log(untold: list[Source]) -> Iterator[CapturedText]:
    with captured(STDOUT, _not_onednn) as log:
        logging = torch._C._has_mkldnn and bool(mkldnn_set_verbose(_LOG_EXECUTION))
        if not logging:
            untold.append(Source.ONEDNN)
        try:
            yield log
        finally:
            if logging:
                mkldnn_set_verbose(_LOG_NOTHING)


def _not_onednn(line: str) -> str:
    """What of a line somebody else wrote."""
    if not is_log_line(line):
        return line
    return line[: min(place for prefix in _LOG_PREFIXES if (place := line.find(prefix)) >= 0)]


def _operators(root: OperatorEvent) -> Iterator[Kernel]:
    for event in root.subtree():
        if _OPERATOR.match(event.name):
            yield Kernel(Source.ATEN, event.name)


def _primitive(primitive: Primitive) -> Kernel:
    direction = "forward" if primitive.prop_kind.startswith("forward") else primitive.prop_kind
    # A bias may be absent on one side for a fused epilogue, and formats are what a change of layout changes.
    arguments = [
        ":".join((argument.argument, argument.dtype, "x".join(map(str, argument.dims or ()))))
        for argument in primitive.arguments
        if argument.argument in ("src", "wei", "dst")
    ]
    return Kernel(Source.ONEDNN, primitive.implementation, " ".join((primitive.kind, direction, *arguments)))


def _device_kernels(events: Sequence[Any]) -> Counter[Kernel]:
    found: Counter[Kernel] = Counter()
    for event in events:
        # A record_function's shadow on the device's timeline carries no operator's kernel.
        if event.device_type() == DeviceType.CUDA and not getattr(event, "is_user_annotation", bool)():
            name = event.name()
            found[Kernel(Source.DEVICE, device_kernel_name(name))] += 1
    return found


_PREFIX = "cpp_"


@contextlib.contextmanager
def counted_loops() -> Iterator[Counter[str]]:
    """Inside, calls of every loop that has been compiled so far are counted by what it fuses: `cpp_fused_relu` → 2.

    Generated programs are Python modules that call their loops by global name (`PyCodeCache.modules`, seen on 2.13
    and 2.15); those globals are replaced for the time being. With `cpp_wrapper` the calls are C++, and are not seen.
    Loops of graphs that are compiled inside are not counted.
    """
    counts: Counter[str] = Counter()
    replaced: list[tuple[Any, str, Any]] = []
    # Where nothing has imported Inductor, nothing has been generated.
    cache = sys.modules.get("torch._inductor.codecache")
    modules = () if cache is None else tuple(cache.PyCodeCache.modules)
    try:
        for module in modules:
            for name, loop in list(vars(module).items()):
                if name.startswith(_PREFIX) and callable(loop):
                    setattr(module, name, _counting(loop, generated_name(name), counts))
                    replaced.append((module, name, loop))
        yield counts
    finally:
        for module, name, loop in replaced:
            setattr(module, name, loop)


def _counting(loop: Callable[..., Any], name: str, counts: Counter[str]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        counts[name] += 1
        return loop(*args, **kwargs)

    return call
