"""Records of captured graphs, and of what could not be captured."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from frx_graph.capture.call_site import CallSite

if TYPE_CHECKING:
    from torch.fx import GraphModule


class Phase(enum.StrEnum):
    """Half of a training step that an operation belongs to; inference is all FORWARD."""

    FORWARD = "forward"
    BACKWARD = "backward"


class InputKind(enum.StrEnum):
    """Role of a graph input in the program."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    ARGUMENT = "argument"


@dataclass(frozen=True, slots=True)
class GraphInput:
    """One placeholder of a captured graph. `path` is how the program names it: `model.conv.weight`, `args[0]`."""

    name: str
    path: str
    kind: InputKind


@dataclass(frozen=True)
class CapturedGraph:
    """One compiled region, traced to ATen exactly as eager dispatches it: views, in-place operators and copies kept.

    `aten` carries fake values with real strides in `meta["val"]`. With `train` it holds the backward too. `sites` and
    `phases` are keyed by node name. `graph_id` is Dynamo's compile id, `frame/recompile`. `calls` is how often one step
    runs the graph: a frame that Dynamo compiled once may serve many modules of the same kind. `gradients` pairs each
    parameter's placeholder with the value that becomes its gradient. `parameters` holds the identities of the real
    parameters: they separate versions of a frame for other modules from versions for other inputs. `inner` is the
    compiler that the program gave the graph to; empty if only the capture compiled it.
    """

    graph_id: str
    origin: str
    train: bool
    aten: GraphModule
    inputs: tuple[GraphInput, ...]
    sites: Mapping[str, CallSite]
    phases: Mapping[str, Phase]
    outputs_visible: tuple[str, ...]
    calls: int = 1
    gradients: tuple[tuple[str, str], ...] = ()
    parameters: tuple[int, ...] = ()
    inner: str = ""


@dataclass(frozen=True, slots=True)
class GraphBreak:
    """A place where Dynamo ended a graph. `graph_id` names the first graph that ended there."""

    reason: str
    site: CallSite
    graph_id: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Recompile:
    """A guard that failed and made Dynamo compile a frame again."""

    graph_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class CaptureFailure:
    """A part of the program that could not be captured, and why."""

    subject: str
    reason: str
    site: CallSite | None = None


@dataclass(frozen=True)
class Capture:
    """Everything observed while a program was compiled."""

    graphs: tuple[CapturedGraph, ...]
    breaks: tuple[GraphBreak, ...] = ()
    recompiles: tuple[Recompile, ...] = ()
    failures: tuple[CaptureFailure, ...] = ()


def select_current_versions(capture: Capture) -> Capture:
    """Return `capture` with the graphs that the next step runs, of all that were compiled over time.

    Of the versions of a frame for the same parameters, that is the last one that trains, else the last. Versions for
    other parameters are other modules, and run in the same step. A program that was compiled again after a reset
    counts once.
    """
    latest: dict[tuple[str, tuple[int, ...]], CapturedGraph] = {}
    for graph in capture.graphs:
        key = (get_frame_id(graph.graph_id), graph.parameters)
        if graph.train or key not in latest or not latest[key].train:
            latest[key] = graph
    distinct = {_build_program_key(graph): graph for graph in latest.values()}
    return replace(capture, graphs=tuple(distinct.values()))


def get_frame_id(graph_id: str) -> str:
    """Return the frame that a graph belongs to: Dynamo names graphs `frame/version`."""
    return graph_id.partition("/")[0]


def _build_program_key(graph: CapturedGraph) -> tuple[object, ...]:
    """Return what two compilations of one program share: operators, call sites, input shapes, parameters."""
    nodes = graph.aten.graph.nodes
    shapes = (str(getattr(node.meta.get("val"), "shape", None)) for node in nodes if node.op == "placeholder")
    return (*((str(node.target), graph.sites.get(node.name)) for node in nodes), *shapes, *graph.parameters)
