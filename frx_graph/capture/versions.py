"""Of all that a program was compiled to over time, what its next step runs."""

from __future__ import annotations

from dataclasses import replace

from frx_graph.capture.captured_graph import Capture, CapturedGraph


def current_versions(capture: Capture) -> Capture:
    """Of the versions of a frame that were compiled for the same parameters, the last one that trains, else the last.

    They were made for inputs of several steps; versions for other parameters are other modules, and run in the same
    step. A program that was compiled again after a reset counts once.
    """
    latest: dict[tuple[str, tuple[int, ...]], CapturedGraph] = {}
    for graph in capture.graphs:
        key = (frame_of(graph.graph_id), graph.parameters)
        if graph.train or key not in latest or not latest[key].train:
            latest[key] = graph
    distinct = {_program(graph): graph for graph in latest.values()}
    return replace(capture, graphs=tuple(distinct.values()))


def frame_of(graph_id: str) -> str:
    """The frame that a graph belongs to: Dynamo names graphs `frame/version`."""
    return graph_id.partition("/")[0]


def _program(graph: CapturedGraph) -> tuple[object, ...]:
    """What two compilations of one program share: operators, call sites, input shapes, parameters."""
    nodes = graph.aten.graph.nodes
    shapes = (str(getattr(node.meta.get("val"), "shape", None)) for node in nodes if node.op == "placeholder")
    return (*((str(node.target), graph.sites.get(node.name)) for node in nodes), *shapes, *graph.parameters)
