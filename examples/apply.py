"""Runs a network under `torch.compile(model, backend="frx")` and says what was applied to it: what a trial has
promoted, and nothing else.

    python examples/apply.py benchmarks/zoo.py:resnet18
"""

from __future__ import annotations

import copy
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import frx_graph
from frx_graph.advisor.target import load_target

ROUNDS = 15


def seconds(call: Callable[[], Any]) -> float:
    """Wall time of one call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def main(target: str) -> None:
    """Compile twice, compare the outputs, and time both in turns."""
    given = load_target(target)
    assert isinstance(given.model, torch.nn.Module)
    other = copy.deepcopy(given.model)
    plain = torch.compile(other, backend="inductor")
    ours = torch.compile(given.model, backend="frx")
    with torch.no_grad():
        expected, found = plain(*given.args, **given.kwargs), ours(*given.args, **given.kwargs)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
        times = [
            (seconds(lambda: plain(*given.args, **given.kwargs)), seconds(lambda: ours(*given.args, **given.kwargs)))
            for _ in range(ROUNDS)
        ]
    for graph in frx_graph.rewritten():
        applied = ", ".join(f"{made.rewrite} of {len(made.nodes)} operators" for made in graph.applied)
        edges = f"{len(graph.conversions)} conversions added"
        print(f"Graph {graph.graph_id}, {graph.phase}: {applied or 'nothing'}; {edges}.")
    if not frx_graph.rewritten():
        print("Nothing was promoted for this network, so nothing was applied.")
    before, after = (statistics.median(column) * 1e3 for column in zip(*times, strict=True))
    print(f"Inductor alone {before:.1f} ms, with frx {after:.1f} ms a call, in turns; the outputs agree.")


if __name__ == "__main__":
    main(sys.argv[1])
