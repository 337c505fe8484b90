"""One way to run a network in a process of its own, which answers how long a step takes: torch, frx, ONNX Runtime or
OpenVINO.

`peers.py` starts it, one process an arm, since the threads of ONNX Runtime and OpenVINO spin and would disturb another
arm of the same process. A request and an answer are a line of JSON each.
"""

from __future__ import annotations

import copy
import enum
import gc
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch._inductor import config as inductor_config
from torch.utils import _pytree as pytree
from versus_arms import Arm, Call, Inner, Kind, arms_of
from versus_case import DTYPES, TOLERANCES, Case, Expected, Mode, Network, Outcome, build, forward_backward
from zoo import zoo_entry

from frx_graph.support.allocator import Allocation, pool_allocations
from frx_graph.support.plain_text import clean_line

Step: TypeAlias = Callable[[], list[Tensor]]
"""Runs the network and returns its outputs."""
_WARM_UP_STEPS = 5
_FIRST_SECONDS = 1.0
"""Steps are run for at least so long before an arm is ready."""


class Family(enum.StrEnum):
    """Who makes the program."""

    TORCH = "torch"
    FRX = "frx"
    PEER = "peer"


@dataclass(frozen=True, slots=True)
class Request:
    """What an arm runs. `dtype` is a key of `DTYPES`; with `profile` the operators are timed instead of steps."""

    arm: str
    network: str
    batch: int
    dtype: str
    threads: int
    allocation: Allocation
    profile: bool = False


@dataclass(frozen=True, slots=True)
class PeerArm:
    """One way to run a network. `load` returns a step, and a function that returns seconds a call by operator."""

    name: str
    family: Family
    load: Callable[[Network, Request], tuple[Step, Callable[[], Mapping[str, float]]]]
    frozen: bool = True
    """False where weights may change between calls."""
    converts: bool = False
    """True where a network in fp32 is converted to the request's dtype by the peer itself."""


def _load_torch(arm: Arm) -> Callable[[Network, Request], tuple[Step, Callable[[], Mapping[str, float]]]]:
    def load(network: Network, request: Request) -> tuple[Step, Callable[[], Mapping[str, float]]]:
        model, calls = network
        if request.profile:
            inductor_config.cpp.enable_kernel_profile = True
        program, calls = arm.prepare(model, calls)
        with inductor_config.patch(dict(arm.config)):
            forward_backward(program, calls, False)

        def step() -> list[Tensor]:
            return forward_backward(program, calls, False)

        return step, lambda: _profile_torch(step)

    return load


def _profile_torch(step: Step, steps: int = 20) -> dict[str, float]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(steps):
            step()
    averages = profiler.key_averages()
    return {event.key: event.self_cpu_time_total / 1e6 / steps for event in averages if event.self_cpu_time_total}


def _load_onnxruntime(network: Network, request: Request) -> tuple[Step, Callable[[], Mapping[str, float]]]:
    import onnxruntime

    model, calls = network
    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = request.threads
        options.enable_profiling = request.profile
        options.profile_file_prefix = str(Path(tempfile.gettempdir()) / f"peers-{os.getpid()}")
        options.log_severity_level = 3
        file = _export_onnx(model, calls[0], Path(folder))
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    feeds = [dict(zip(names, (t.numpy() for t in _list_tensors(call)), strict=True)) for call in calls]

    def step() -> list[Tensor]:
        return [torch.from_numpy(made) for feed in feeds for made in session.run(None, feed)]

    def profile(steps: int = 20) -> dict[str, float]:
        for _ in range(steps):
            step()
        file = Path(session.end_profiling())
        events = json.loads(file.read_text())
        file.unlink()
        calls = sum(event["name"] == "model_run" for event in events)
        found: dict[str, float] = {}
        for event in events:
            if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
                kind = event["args"]["op_name"]
                found[kind] = found.get(kind, 0.0) + event["dur"] / 1e6 / max(calls, 1)
        return found

    return step, profile


def _load_openvino(network: Network, request: Request) -> tuple[Step, Callable[[], Mapping[str, float]]]:
    import openvino

    model, calls = network
    core = openvino.Core()
    try:
        args, kwargs = calls[0]
        converted = openvino.convert_model(torch.export.export(model, args, kwargs))
    except Exception:  # noqa: BLE001 - it knows more operators of ONNX than of torch
        with tempfile.TemporaryDirectory() as folder:
            converted = core.read_model(_export_onnx(model, calls[0], Path(folder)))
    hints = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": request.threads,
        "INFERENCE_PRECISION_HINT": {"fp32": "f32", "bf16": "bf16"}[request.dtype],
        "PERF_COUNT": request.profile,
    }
    asked = core.compile_model(converted, "CPU", hints).create_infer_request()
    feeds = [[t.numpy() for t in _list_tensors(call)] for call in calls]

    def step() -> list[Tensor]:
        made = [asked.infer(feed, share_inputs=True, share_outputs=True) for feed in feeds]
        return [torch.from_numpy(one) for each in made for one in each.to_tuple()]

    def profile(steps: int = 20) -> dict[str, float]:
        found: dict[str, float] = {}
        for _ in range(steps):
            step()
            for node in asked.profiling_info:
                kind = f"{node.node_type} {node.exec_type}"
                seconds = node.real_time.total_seconds() / steps
                if seconds:
                    found[kind] = found.get(kind, 0.0) + seconds
        return found

    return step, profile


def _export_onnx(model: nn.Module, call: Call, folder: Path) -> Path:
    args, kwargs = call
    file = folder / "network.onnx"
    torch.onnx.export(model, args, file, kwargs=kwargs, dynamo=True, verbose=False)
    return file


def _list_tensors(call: Call) -> list[Tensor]:
    # A peer takes dense arrays.
    return [t.contiguous() for t in pytree.tree_leaves(call) if isinstance(t, Tensor)]


def _make_arms() -> Iterator[PeerArm]:
    known = {arm.name: arm for arm in arms_of(Inner.INDUCTOR)}
    for name in ("eager", "inductor", "freezing", "frx", "frx frozen", "frx frozen C++", "frx eager frozen"):
        arm = known[name]
        family = Family.FRX if arm.kind is Kind.FRX else Family.TORCH
        yield PeerArm(name, family, _load_torch(arm), frozen=arm.frozen)
    tuned: dict[str, Any] = {"freezing": True, "max_autotune": True}
    compiled = Arm(
        "freezing max-autotune", Kind.VARIANT, lambda model: torch.compile(model, options=tuned), config=tuned
    )
    yield PeerArm(compiled.name, Family.TORCH, _load_torch(compiled))
    yield PeerArm("onnxruntime", Family.PEER, _load_onnxruntime)
    yield PeerArm("openvino", Family.PEER, _load_openvino, converts=True)


ARMS: Mapping[str, PeerArm] = {arm.name: arm for arm in _make_arms()}


def load_arm(request: Request) -> tuple[Step, Callable[[], Mapping[str, float]], str | None]:
    """Load and check an arm: its step, its profiler, and what is wrong with its outputs, if anything is."""
    arm = ARMS[request.arm]
    torch.set_num_threads(request.threads)
    if request.allocation is Allocation.POOLED:
        pool_allocations()
    case = Case(zoo_entry(request.network), Mode.INFERENCE, request.batch, request.dtype, Inner.INDUCTOR)
    network = build(case, torch.device("cpu"))
    expected = Expected.of(network, False)
    if arm.family is Family.PEER and request.dtype != "fp32":
        if not arm.converts:
            raise ValueError(f"{arm.name} does not run {request.dtype} here")
        wide = Case(zoo_entry(request.network), Mode.INFERENCE, request.batch, "fp32", Inner.INDUCTOR)
        network = build(wide, torch.device("cpu"))
    model, calls = network
    with torch.no_grad():
        step, profile = arm.load((copy.deepcopy(model), calls), request)
        dtypes = [output.dtype for output in expected.same_dtype.outputs]
        made = step()
        cast = zip(made, dtypes, strict=False)
        outputs = tuple(t.to(dtype) if t.is_floating_point() else t for t, dtype in cast)
        wrong = expected.difference(Outcome(outputs, {}), TOLERANCES[DTYPES[request.dtype]])
    if len(made) != len(dtypes):
        wrong = f"{len(made)} outputs instead of {len(dtypes)}"
    return step, profile, wrong


def measure_steps(step: Step, count: int) -> dict[str, Any]:
    """Run a step `count` times: seconds of the clock for each, processor seconds of all, and page faults of all."""
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    cpu = time.process_time()
    walls = []
    for _ in range(count):
        begun = time.perf_counter()
        step()
        walls.append(time.perf_counter() - begun)
    return {
        "wall_s": walls,
        "cpu_s": (time.process_time() - cpu) / count,
        "faults": (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults) / count,
    }


def main(arguments: Sequence[str]) -> int:
    """Answer requests until standard input ends."""
    # What libraries print goes to standard error.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(found: Mapping[str, object]) -> None:
        print(json.dumps(found), file=answers, flush=True)

    found = json.loads(arguments[0])
    request = Request(**{**found, "allocation": Allocation(found["allocation"])})
    begun = time.perf_counter()
    try:
        step, profile, wrong = load_arm(request)
    except Exception as error:  # noqa: BLE001 - an arm that cannot run is a result
        said = str(error).strip().partition("\n")[0]
        answer({"error": clean_line(f"{type(error).__name__}: {said}", 300)})
        return 0
    if wrong is not None:
        answer({"error": f"wrong {wrong}"})
        return 0
    loaded_s = time.perf_counter() - begun
    gc.collect()
    with torch.no_grad():
        until = time.perf_counter() + _FIRST_SECONDS
        while measure_steps(step, _WARM_UP_STEPS) and time.perf_counter() < until:
            pass
        answer({"loaded_s": loaded_s, "step_s": min(measure_steps(step, _WARM_UP_STEPS)["wall_s"])})
        for line in sys.stdin:
            asked = json.loads(line)
            answer({"operators": dict(profile())} if request.profile else measure_steps(step, asked["steps"]))
    return 0


def write_request(request: Request) -> str:
    """Write a request as the argument of this program."""
    return json.dumps(asdict(request))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
