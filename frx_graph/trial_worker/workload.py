"""Load the workload of a trial in an arm's process, and derive programs from it: eager, copied, in float64."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from frx_graph.advisor.source_overlay import overlay_sources
from frx_graph.advisor.target import DTYPES, load_target, place
from frx_graph.support.torch_internals import pytree
from frx_graph.trial_worker.graph_file import read_graph
from frx_graph.trials.arm_messages import GraphWorkload, TargetWorkload
from frx_graph.trials.environment import find_device
from frx_graph.trials.results import Program


@dataclass(frozen=True)
class LoadedWorkload:
    """Runs `model(*args, **kwargs)`, within `process()`, entered once, and `surroundings()`, for each run."""

    model: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    surroundings: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
    process: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
    optimizer: torch.optim.Optimizer | None = None
    """Updates the parameters at the end of a training step."""

    @property
    def device(self) -> torch.device:
        """The GPU, if any tensor is there; else the CPU."""
        return find_device(self.make_program(train=False).tensors)

    def make_program(self, train: bool) -> Program:
        """Return the program that eager runs."""
        module = self.model if isinstance(self.model, nn.Module) else None
        return Program(self.model, module, self.args, self.kwargs, train, self.optimizer)


def load_workload(workload: TargetWorkload | GraphWorkload) -> LoadedWorkload:
    """Load the workload in this process. Raises `TargetError` and `SerializationError`."""
    if isinstance(workload, GraphWorkload):
        graph = read_graph(Path(workload.folder))
        return LoadedWorkload(graph.model, graph.args, {}, graph.surroundings.step, graph.surroundings.process)
    if workload.overlay:
        overlay_sources(dict(workload.overlay))
    made = load_target(workload.target, dict(workload.shape))
    found = place(made, workload.device, DTYPES[workload.dtype] if workload.dtype else None)
    return LoadedWorkload(found.model, tuple(found.args), found.kwargs, optimizer=found.optimizer)


def copy_program(program: Program) -> Program:
    """Return the program with copies of the model and the optimizer; functions are not copied."""
    if program.model is None:
        return program
    model, optimizer = copy.deepcopy((program.model, program.optimizer))
    return replace(program, call=model, model=model, optimizer=optimizer)


def convert_to_fp64(program: Program) -> Program | None:
    """Return a copy of the program in float64; None if it cannot be converted."""

    def widen(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        return value.detach().double().requires_grad_(value.requires_grad)

    try:
        program = copy_program(program)
        call = program.call if program.model is None else program.model.double()
        args, kwargs = pytree.tree_map(widen, (program.args, dict(program.kwargs)))
    except Exception:  # noqa: BLE001 - the workload's own code, in a type that it was not written for
        return None
    return replace(program, call=call, args=args, kwargs=kwargs)
