"""Promotions of whatever can be made of a program, which no trial has proved: to measure and test what follows one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import torch
from torch import fx

from frx_graph.capture.graph_signature import hash_compilation
from frx_graph.compiler.code_fingerprint import compute_environment_key
from frx_graph.compiler.inner_compiler import make_planned_backend
from frx_graph.compiler.plans import make_current_plan, make_recorded_plan
from frx_graph.compiler.rewrite_log import LOG
from frx_graph.ledger.decision import Decision, Kind
from frx_graph.options import parse_backend_options
from frx_graph.records import Candidate
from frx_graph.trials.environment import read_trial_setup

Backend = Callable[..., Any]


def everything_made(inner: str, run: Callable[[Backend], object]) -> tuple[tuple[str, ...], tuple[Candidate, ...]]:
    """The signatures of the graphs that `run` compiles with the backend that it is given, and all that can be made of
    them for the compiler `inner`."""
    signatures: list[str] = []

    def failed(error: Exception) -> None:
        raise error

    planned = make_planned_backend(parse_backend_options({"inner": inner}, None), make_current_plan("all"), failed)

    def backend(dynamo: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        signatures.append(hash_compilation(dynamo.graph, inner, None))
        compiled: Callable[..., Any] = planned(dynamo, inputs)
        return compiled

    LOG.clear()
    run(backend)
    made = tuple(replace(c, graph_id=done.signature) for done in LOG.read_all() for c in done.applied)
    return tuple(dict.fromkeys(signatures)), made


def promotion(signature: str, candidates: tuple[Candidate, ...], /, **changes: Any) -> list[Decision]:
    """Decisions that make a plan of `candidates` stand for the graph with this signature, on this machine's CPU."""
    proposed = Decision(
        kind=Kind.PROPOSED,
        signature=signature,
        environment=compute_environment_key(read_trial_setup(torch.device("cpu"))),
        plan=make_recorded_plan(candidates).hash,
        reason="nothing was tried",
        decided_by="frx trial",
        host="here",
        process_id=1,
        recorded_at=datetime.now(UTC),
        candidates=candidates,
    )
    proposed = replace(proposed, **changes)
    trial = '{"schema": "frx_trial_v1", "verdict": "promote"}'
    return [proposed, replace(proposed, kind=Kind.TRIED, trial=trial), replace(proposed, kind=Kind.PROMOTED)]
