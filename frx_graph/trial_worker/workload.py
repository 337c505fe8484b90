"""Loads what a trial is about in an arm's process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from frx_graph.advisor.target import DTYPES, load_target, place
from frx_graph.trial_worker.graph_file import read_graph
from frx_graph.trials.arm_messages import GraphWorkload, TargetWorkload


@dataclass(frozen=True)
class Loadable:
    """`model(*args, **kwargs)` is a step's call, to be compiled and run inside `surroundings()`, each time anew, which
    lie inside `process()`, entered once."""

    model: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    surroundings: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
    process: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
    optimizer: torch.optim.Optimizer | None = None
    """What a training step ends with, if anything."""


def load_workload(workload: TargetWorkload | GraphWorkload) -> Loadable:
    """The workload, in this process. Raises `TargetError` and `TravelError`."""
    if isinstance(workload, GraphWorkload):
        graph = read_graph(Path(workload.folder))
        return Loadable(graph.model, graph.args, {}, graph.surroundings.step, graph.surroundings.process)
    made = load_target(workload.target, dict(workload.shape))
    found = place(made, workload.device, DTYPES[workload.dtype] if workload.dtype else None)
    return Loadable(found.model, tuple(found.args), found.kwargs, optimizer=found.optimizer)
