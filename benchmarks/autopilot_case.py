"""One network of the zoo under the autopilot, in a process of its own: what was compiled, and what was warned of.

    python benchmarks/autopilot_case.py '{"model": "resnet18", ...}'

Every graph is kept as a file under its signature before the autopilot gets it, so that what was decided about it can be
measured again. Decisions go to the ledger that `FRX_LEDGER` names.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict
from torch import fx
from versus_arms import Inner
from versus_case import Case, Mode, build, forward_backward
from versus_measure import in_one_line
from zoo import zoo_entry

from frx_graph.capture.graph_signature import hash_compilation
from frx_graph.errors import SerializationError
from frx_graph.trial_worker.graph_file import write_graph

STEPS = 2
"""Calls of the compiled network: the second shows that nothing is left to compile."""


class Asked(BaseModel):
    """What to run. `policy` is a mapping of a trial policy's keys, `folder` an existing folder for what is found."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    train: bool
    batch: int
    device: str
    inner: Inner
    policy: Mapping[str, Any]
    folder: Path

    @property
    def case(self) -> Case:
        mode = Mode.TRAINING if self.train else Mode.INFERENCE
        return Case(zoo_entry(self.model), mode, self.batch, "fp32", self.inner)


class Found(BaseModel):
    """What became of it: each graph's signature with why it cannot travel, if so."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    graphs: Mapping[str, str | None]
    warned: tuple[str, ...]
    error: str | None


def graph_folder(folder: Path, signature: str) -> Path:
    """Where a graph is kept."""
    return folder / "graphs" / signature


def found_file(folder: Path) -> Path:
    """Where `Found` is written."""
    return folder / "found.json"


def run(asked: Asked) -> Found:
    """Run the network under the autopilot; whatever it raises is part of what is found."""
    graphs: dict[str, str | None] = {}
    error = None
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", RuntimeWarning)
        try:
            network, calls = build(asked.case, torch.device(asked.device))
            options: Any = {"mode": "autopilot", "policy": dict(asked.policy), "inner": asked.inner.value}
            program = torch.compile(network, backend=_keeping(asked, graphs), options=options)
            for _ in range(STEPS):
                forward_backward(program, calls, asked.train)
        except Exception as raised:  # noqa: BLE001 - a network that does not run is a result
            error = in_one_line(raised)
    texts = (str(one.message) for one in warned if str(one.message).startswith("frx"))
    return Found(graphs=graphs, warned=tuple(dict.fromkeys(texts)), error=error)


def _keeping(asked: Asked, graphs: dict[str, str | None]) -> Callable[..., Any]:
    """The backend, which keeps each graph first. A graph may come twice, and is kept as it came last."""
    frx = torch._dynamo.lookup_backend("frx")

    def backend(dynamo: fx.GraphModule, inputs: list[Any], **how: Any) -> Any:
        signature = hash_compilation(dynamo.graph, asked.inner.value, None)
        try:
            write_graph(graph_folder(asked.folder, signature), dynamo, inputs)
            graphs[signature] = None
        except SerializationError as error:
            graphs[signature] = str(error)
        return frx(dynamo, inputs, **how)

    return backend


def main() -> int:
    """Run what the only argument says."""
    asked = Asked.model_validate_json(sys.argv[1])
    try:
        found = run(asked)
    except KeyboardInterrupt:
        # Whoever has interrupted it knows.
        return 1
    found_file(asked.folder).write_text(found.model_dump_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())
