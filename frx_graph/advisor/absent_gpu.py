"""Put a program on a GPU that is not there: its tensors have the GPU's device, shapes and strides, but no memory.

Torch's fake tensors may have a device that this machine lacks. What operators return for them follows torch's own rules
for that device: a convolution answers in the strides that cuDNN would. `Module.to` cannot change a fake tensor's
device, so the tensors are replaced one by one, in a copy of the program.
"""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate

from frx_graph.advisor.target import Workload, load_target
from frx_graph.capture.absent_gpu import AbsentGpu
from frx_graph.capture.aten_trace import UntracedGraph
from frx_graph.capture.state_snapshot import find_state
from frx_graph.errors import OptionError, TargetError, summarize_error
from frx_graph.measure.machine.device_calibration import get_preferred_alignment
from frx_graph.measure.machine.device_profile import DeviceProfile
from frx_graph.rules.gpu_profile import FLOAT32, GpuProfile
from frx_graph.support.torch_internals import (
    FakeTensor,
    FakeTensorMode,
    convert_module,
    pytree,
    replace_module_conversion,
)

_DEVICE = "cuda"
"""AMD's GPUs have the same type in torch."""


@dataclass(frozen=True)
class AbsentProgram:
    """A program whose tensors are fakes of `mode`, on the GPU."""

    mode: FakeTensorMode
    model: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def describe_absent(gpu: GpuProfile) -> AbsentGpu:
    """Return the rules of a GPU that capturing a program for it needs."""
    # `PYTORCH_MIOPEN_SUGGEST_NHWC`: `ATen/native/ConvUtils.h`, torch 2.15.
    asked = os.environ.get("PYTORCH_MIOPEN_SUGGEST_NHWC") == "1"
    return AbsentGpu(plain_convolutions=gpu.architecture.architecture.startswith("gfx") and not asked)


def check_build() -> None:
    """Raise `OptionError` if torch is built for processors only. Operators then raise for tensors of a GPU, also
    without memory, and autograd ends the process (torch 2.13)."""
    if not torch.backends.cuda.is_built():
        raise OptionError(
            "this torch is built for processors only, and knows nothing of GPUs",
            "install a torch for CUDA or ROCm: it needs no GPU for this",
        )


def load_on_absent_gpu(target: str, dtype: torch.dtype | None) -> Workload:
    """Load a target on the GPU, with floating-point tensors in `dtype`. Its weights take no memory, unless the model
    cannot be built so; then it is built as it is. Raises `TargetError`, and `OptionError` as `check_build` does."""
    check_build()
    try:
        workload = load_target(target, within=_build_without_memory())
    except TargetError:
        # Values are needed, or a library refuses fake tensors, with any exception.
        workload = load_target(target)
    placed = place_on_absent_gpu(workload.model, workload.args, workload.kwargs, dtype)
    return replace(workload, model=placed.model, args=placed.args, kwargs=placed.kwargs)


@contextlib.contextmanager
def _build_without_memory() -> Iterator[None]:
    """Make fake tensors of what is built, and let modules convert them: torch cannot put other data into one."""
    converted: dict[int, tuple[Tensor, nn.Parameter]] = {}

    def convert(parameter: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        if id(parameter) not in converted:
            made = nn.Parameter(function(parameter.detach()), parameter.requires_grad)
            # The old one is kept, so that no other gets its id: tied weights stay tied.
            converted[id(parameter)] = (parameter, made)
        return converted[id(parameter)][1]

    depth = 0

    def apply(module: nn.Module, function: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        nonlocal depth
        if not depth:
            converted.clear()
        depth += 1
        try:
            for child in module.children() if recurse else ():
                convert_module(child, function)
        finally:
            depth -= 1
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = convert(parameter, function)  # type: ignore[assignment]
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else function(buffer)
        return module

    with replace_module_conversion(apply), FakeTensorMode(allow_non_fake_inputs=True):
        yield


def place_on_absent_gpu(
    model: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    dtype: torch.dtype | None = None,
) -> AbsentProgram:
    """Return a copy of the program on the GPU, with floating-point tensors in `dtype`, if any. The program itself is
    not changed. Raises `TargetError` if it cannot be copied, and `OptionError` as `check_build` does."""
    check_build()
    program = (model, tuple(args), dict(kwargs or {}))
    tensors = {id(tensor): tensor for tensor in _list_tensors(program)}
    fake = next((tensor for tensor in tensors.values() if isinstance(tensor, FakeTensor)), None)
    mode = FakeTensorMode(allow_non_fake_inputs=True) if fake is None else fake.fake_mode
    try:
        # What is in the memo is taken as the copy.
        memo: dict[int, Any] = {key: _make_absent(tensor, dtype, mode) for key, tensor in tensors.items()}
        with mode:
            placed = copy.deepcopy(program, memo)
        if not all(isinstance(tensor, FakeTensor) for tensor in _list_tensors(placed)):
            raise TypeError("a function holds tensors: make it a module")
    except Exception as error:
        raise TargetError(
            f"the model cannot be copied for a GPU that is not here: {summarize_error(error)}",
            "let copy.deepcopy(model) work",
        ) from error
    return AbsentProgram(mode, *placed)


def _list_tensors(program: tuple[object, ...]) -> Iterator[Tensor]:
    """Yield the tensors of the arguments, those that modules hold, as attributes too, and those of functions."""
    modules, tensors = find_state(program)
    yield from tensors
    for module in modules:
        held = pytree.tree_leaves([value for value in vars(module).values() if not isinstance(value, nn.Module)])
        yield from (value for value in held if isinstance(value, Tensor))


def _make_absent(tensor: Tensor, dtype: torch.dtype | None, mode: FakeTensorMode) -> Tensor:
    if type(tensor) not in (Tensor, nn.Parameter, nn.Buffer, FakeTensor) or tensor.layout is not torch.strided:
        raise TypeError(f"a {type(tensor).__name__} ({tensor.layout}) cannot be put on a GPU that is not here")
    wanted = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
    if isinstance(tensor, FakeTensor) and (tensor.device.type, tensor.dtype) == (_DEVICE, wanted):
        return tensor
    with mode:
        made = torch.empty_strided(tensor.size(), tensor.stride(), dtype=wanted, device=_DEVICE)
        if isinstance(tensor, nn.Parameter):
            return nn.Parameter(made, requires_grad=tensor.requires_grad)
    return made.requires_grad_(tensor.requires_grad)


def place_graph_on_absent_gpu(graph: UntracedGraph) -> UntracedGraph:
    """Return a copy of a graph of a program that runs here: its inputs are on the GPU, and so is what names the CPU.
    Raises `TypeError` for tensors of other classes."""
    held = {id(tensor): tensor for tensor in _list_tensors((graph.dynamo,))}
    mode = graph.get_fake_mode()
    memo: dict[int, Any] = {key: _make_absent(tensor, None, mode) for key, tensor in held.items()}
    dynamo = copy.deepcopy(graph.dynamo, memo)
    for module in dynamo.modules():
        for node in module.graph.nodes if isinstance(module, fx.GraphModule) else ():
            if node.op.startswith("call"):
                node.args, node.kwargs = map_aggregate((node.args, node.kwargs), _name_gpu)
    fakes = tuple(_make_absent(fake, None, mode) if isinstance(fake, Tensor) else fake for fake in graph.fakes)
    return replace(graph, dynamo=dynamo, fakes=fakes)


def _name_gpu(argument: Any) -> Any:
    if isinstance(argument, str):
        return _DEVICE if argument == "cpu" else argument
    return torch.device(_DEVICE) if argument == torch.device("cpu") else argument


def profile_documented_gpu(gpu: GpuProfile) -> DeviceProfile | None:
    """Return the bandwidth and the peaks that the maker documents, without TF32; None if they are unknown."""
    bandwidth, float32 = gpu.bandwidth_bytes_per_s, gpu.get_peak_flops(FLOAT32)
    if gpu.product is None or gpu.product.source is None or bandwidth is None or float32 is None:
        return None
    half = {torch.bfloat16: gpu.get_peak_flops("bf16"), torch.float16: gpu.get_peak_flops("fp16")}
    return DeviceProfile(
        device=_DEVICE,
        name=gpu.name,
        bandwidth_bytes_per_s=bandwidth,
        peak_flops={torch.float32: float32, **{dtype: peak for dtype, peak in half.items() if peak is not None}},
        preferred_alignment_bytes=get_preferred_alignment(_DEVICE),
        documented=gpu.product.source,
    )
