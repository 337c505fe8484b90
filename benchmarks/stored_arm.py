"""Programs compiled with every weight stored anew that may be, whatever measured times say.

Operators do not see how weights lie, but programs may: this arm shows what `prepare` lets through.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from program_runs import Observation
from random_program import RandomProgram
from torch import Tensor, nn
from torch._dynamo.utils import counters

import frx_graph
from frx_graph.capture.captured_graph import Phase
from frx_graph.compiler.rewrite_pipeline import RewrittenGraph
from frx_graph.errors import FrxError
from frx_graph.passes.rewrites import preconvert_weights
from frx_graph.passes.rewrites.layout.anchor_calls import anchor_orders
from frx_graph.passes.rewrites.rewrite import RewriteSubject
from frx_graph.prepack import prepare
from frx_graph.records import Candidate, Refusal
from frx_graph.wrapper import compile

STORED = "eager stored"
"""In the place of an inner compiler: eager, through `frx_graph.compile`."""


def stored(
    model: nn.Module,
    program: RandomProgram,
    plan: str,
    told: list[RewrittenGraph],
    listening: Callable[[], AbstractContextManager[None]],
) -> Callable[..., Any]:
    """The model compiled so. `told` gets what was done, weights that were stored anew included; calls run in what
    `listening` makes."""
    options = {"inner": "eager", "plan": plan}
    compiled = frx_graph.compile(model, options=options, dynamic=program.dynamic or None)

    def prepared(*args: Any, **kwargs: Any) -> None:
        # Capture compiles, too, which is not counted.
        graphs, breaks = counters["stats"]["unique_graphs"], counters["graph_break"].copy()
        try:
            done = prepare.prepare(*args, **kwargs)
        except FrxError as error:
            told.append(RewrittenGraph("", Phase.FORWARD, (), (Refusal(STORED, str(error)),)))
        else:
            stored = tuple(
                Candidate(preconvert_weights.NAME, "", (name,), (str(order),)) for name, order in done.converted.items()
            )
            told.append(RewrittenGraph("", Phase.FORWARD, stored, done.refused))
        finally:
            counters["stats"]["unique_graphs"] = graphs
            counters["graph_break"] = breaks

    def run(*inputs: Tensor) -> Any:
        with (
            listening(),
            patch.object(compile, "prepare", prepared),
            patch.object(prepare, "with_measured_times", _everything),
        ):
            return compiled(*inputs)

    return run


def _everything(subject: RewriteSubject, *, prepared: bool) -> RewriteSubject:  # noqa: ARG001 - as what it replaces
    """As if every anchor were faster in another order than it is in, and conversions cost nothing."""
    seconds = {
        member.op.node: {order: _CHANGED if order != member.current else 1.0 for order in anchor_orders(member)}
        for member in subject.anchors
    }
    return replace(subject, seconds=seconds, bandwidth_bytes_per_s=1e18)


_CHANGED = 0.1


def gradients_that_follow(plain: Observation, ours: Observation, stored: frozenset[str]) -> set[str]:
    """What is said of gradients that lie otherwise since weights do: that of a weight that was stored anew lies as the
    weight, and that of another, or of an input, may have another stride in dimensions of size 1 then, where none means
    anything."""
    excused = set()
    for number, (theirs, own) in enumerate(zip(plain.steps, ours.steps, strict=False)):
        for name in theirs.values.keys() & own.values.keys() if stored else ():
            if not name.startswith("gradient of "):
                continue
            parameter = name.removeprefix("gradient of parameter ")
            strides = zip(
                theirs.values[name].shape,
                theirs.facts[f"strides of {name}"],  # type: ignore[call-overload]
                own.facts[f"strides of {name}"],
                strict=True,
            )
            if parameter in stored or all(before == after for size, before, after in strides if size != 1):
                excused.add(f"strides of {name} in step {number}")
    return excused


def stored_anew(told: Sequence[RewrittenGraph]) -> frozenset[str]:
    """The parameters that were stored anew, by name."""
    applied = (candidate for graph in told for candidate in graph.applied)
    return frozenset(candidate.nodes[0] for candidate in applied if candidate.rewrite == preconvert_weights.NAME)
