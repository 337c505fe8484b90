"""Which settings of torch make another environment, and that they are told alike in every process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._dynamo import config as dynamo_config
from torch._functorch import config as functorch_config
from torch._inductor import config as inductor_config
from torch.nn.attention import SDPBackend, sdpa_kernel

from frx_graph.serialization.decisive_settings import collect_decisive_settings
from frx_graph.trial_worker.graph_file import hold_graph, write_graph
from frx_graph.trial_worker.in_process import InProcessArms
from frx_graph.trial_worker.launch import start_arm
from frx_graph.trials.arm_messages import GraphWorkload, Load, Loaded, TargetWorkload, ask
from frx_graph.trials.environment import read_trial_setup

Change = Callable[[], AbstractContextManager[Any]]
CPU = torch.device("cpu")


def none(graph: object) -> None:
    """A pass that does nothing."""


@contextlib.contextmanager
def changed(holder: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(holder, name)
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, before)


DECISIVE: dict[str, Change] = {
    "max_autotune": lambda: inductor_config.patch(max_autotune=True),
    "cpp": lambda: inductor_config.patch({"cpp.threads": 1}),
    "own pass": lambda: inductor_config.patch(post_grad_custom_pre_pass=none),
    "partitioner": lambda: functorch_config.patch(activation_memory_budget=0.5),
    "dynamo": lambda: dynamo_config.patch(optimize_ddp=False),
    "attention": lambda: sdpa_kernel(SDPBackend.MATH),
    "reduction": lambda: changed(torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False),
    "cudnn": lambda: changed(torch.backends.cudnn, "benchmark", True),
}
NOT_DECISIVE: dict[str, Change] = {
    "caches": lambda: inductor_config.patch(fx_graph_cache=False, compile_threads=1),
    "autograd cache": lambda: functorch_config.patch(enable_autograd_cache=False),
    "messages": lambda: inductor_config.patch({"debug": True, "trace.enabled": True}),
    "random numbers": lambda: inductor_config.patch(fallback_random=True),
    "recompiles": lambda: dynamo_config.patch(recompile_limit=64, assume_static_by_default=False, verbose=True),
}


@pytest.mark.parametrize("change", DECISIVE.values(), ids=DECISIVE)
def test_what_decides_kernels_is_another_environment(change: Change) -> None:
    before, here = collect_decisive_settings(), read_trial_setup(CPU).fingerprint
    with change():
        assert collect_decisive_settings() != before
        assert collect_decisive_settings() == collect_decisive_settings()
        assert read_trial_setup(CPU).fingerprint != here
    assert collect_decisive_settings() == before


@pytest.mark.parametrize("change", NOT_DECISIVE.values(), ids=NOT_DECISIVE)
def test_what_decides_nothing_is_none(change: Change) -> None:
    before = collect_decisive_settings()
    with change():
        assert collect_decisive_settings() == before


def test_passes_without_a_path_are_named_and_sets_are_ordered() -> None:
    class Pass:
        pass

    with inductor_config.patch(post_grad_custom_pre_pass=Pass()):
        told = dict(collect_decisive_settings())["torch._inductor.config.post_grad_custom_pre_pass"]
    assert told.endswith("Pass object>")
    assert "0x" not in told
    with dynamo_config.patch(traceable_tensor_subclasses={nn.Buffer, nn.Parameter}):
        told = dict(collect_decisive_settings())["torch._dynamo.config.traceable_tensor_subclasses"]
    assert told.index("Buffer") < told.index("Parameter")


MODEL = """
import torch
import torch._inductor.config

torch._inductor.config.max_autotune_pointwise = True
torch.backends.cuda.enable_flash_sdp(False)
torch.set_float32_matmul_precision("high")

def build():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout()), (torch.randn(2, 4),)
"""


@pytest.mark.integration
@pytest.mark.parametrize("travels", [False, True], ids=["target", "graph"])
def test_an_arm_and_the_program_have_the_same(tmp_path: Path, travels: bool) -> None:
    """Also where the arm draws random numbers, for which it changes Inductor's configuration, and where torch has
    changed Dynamo's to compile without dynamic shapes."""
    seen: list[tuple[tuple[str, str], ...]] = []

    def backend(dynamo: fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        seen.append(collect_decisive_settings())
        write_graph(tmp_path / "graph", dynamo, inputs)
        return dynamo.forward

    torch._dynamo.reset()
    torch.backends.cuda.enable_flash_sdp(False)
    torch.set_float32_matmul_precision("high")
    with inductor_config.patch(max_autotune_pointwise=True):
        model = nn.Sequential(nn.Linear(4, 4), nn.Dropout())
        torch.compile(model, backend=backend, dynamic=False)(torch.randn(2, 4))
    (tmp_path / "model.py").write_text(MODEL)
    target = TargetWorkload(f"{tmp_path / 'model.py'}:build")
    workload = GraphWorkload(str(tmp_path / "graph")) if travels else target
    with start_arm() as arm:
        loaded = ask(arm, Load(workload, True, "inductor", 0), Loaded, 240)
    assert loaded.random
    assert loaded.environment.setup.settings == seen[0]
    assert dict(seen[0])["flash_attention"] == "false"


def test_an_arm_in_the_programs_own_process_has_the_same(tmp_path: Path) -> None:
    """A pass without a path cannot be serialized; the arm's thread has the configuration that Dynamo compiles under."""
    seen: list[tuple[tuple[str, str], ...]] = []

    def backend(dynamo: fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        with InProcessArms(hold_graph(tmp_path, dynamo, inputs)) as arms:
            load = Load(GraphWorkload(str(tmp_path)), False, "eager", 0)
            seen.append(ask(arms.start(), load, Loaded, 240).environment.setup.settings)
        seen.append(collect_decisive_settings())
        return dynamo.forward

    torch._dynamo.reset()
    with inductor_config.patch(post_grad_custom_pre_pass=lambda _: None), torch.no_grad():
        torch.compile(nn.Linear(4, 4), backend=backend)(torch.randn(2, 4))
    assert seen[0] == seen[1]
    assert "torch._inductor.config.post_grad_custom_pre_pass" in dict(seen[0])
