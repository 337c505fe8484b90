"""Find exact minimum cuts with 63-bit capacities by scipy's flows, which have 32 bits.

Capacity scaling: the flow of the capacities' leading bits is a flow, and what can still be pushed after it is little,
at most the lost bits of every edge. So a few flows, each in what the previous ones left, add up to the maximum
(Edmonds and Karp, 1972; Gabow, 1985).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from frx_graph.passes.solver.instance import INFINITE

_FLOW_BITS = 30
"""Bits of a flow and of each capacity. The residual in one direction can be the sum of both, in a signed 32-bit
integer."""


@dataclass(frozen=True, slots=True)
class Network:
    """Edges `tails[i]` to `heads[i]`, several between two vertices allowed. Finite capacities add up to less than
    `INFINITE`, a capacity from there on is never cut if that can be avoided."""

    size: int
    tails: NDArray[np.int64]
    heads: NDArray[np.int64]
    capacities: NDArray[np.int64]


def find_source_side(network: Network, source: int, sink: int, *, exact: bool = True) -> NDArray[np.bool_]:
    """Return for each vertex True if it is on the source's side of the minimum cut with the fewest vertices there.

    Not `exact`, the cut is that of the leading bits only, several times as fast.
    """
    rows, columns, residual = _make_symmetric(network)
    starts = np.searchsorted(rows, np.arange(network.size + 1))
    structure = columns.astype(np.int32), starts.astype(np.int32)
    shape = (network.size, network.size)
    pushable = min(sum(residual[rows == source].tolist()), sum(residual[columns == sink].tolist()))
    while pushable > 0:
        lost = max(0, pushable.bit_length() - _FLOW_BITS)
        leading = np.minimum(residual >> lost, 2**_FLOW_BITS - 1).astype(np.int32)
        flow = maximum_flow(csr_matrix((leading, *structure), shape=shape), source, sink).flow
        if not exact:
            residual = leading - flow.data
            break
        residual = residual - (flow.data.astype(np.int64) << lost)
        pushable = len(residual) << lost if lost else 0
    open_edges = residual > 0
    passable = csr_matrix((open_edges[open_edges], (rows[open_edges], columns[open_edges])), shape=shape)
    reached = np.zeros(network.size, dtype=np.bool_)
    reached[breadth_first_order(passable, source, return_predecessors=False)] = True
    return reached


def _make_symmetric(network: Network) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return rows, columns and capacities by row and column, one entry per edge and its reverse; a missing one has
    capacity 0. The returned flow has the same entries."""
    apart = (network.tails != network.heads) & (network.capacities > 0)
    tails, heads, capacities = network.tails[apart], network.heads[apart], network.capacities[apart]
    keys = np.concatenate((tails * network.size + heads, heads * network.size + tails))
    entries, entry_of = np.unique(keys, return_inverse=True)
    entry_of = entry_of[: len(tails)]
    endless = capacities >= INFINITE
    total = np.zeros(len(entries), dtype=np.int64)
    np.add.at(total, entry_of[~endless], capacities[~endless])
    total[entry_of[endless]] = INFINITE
    return entries // network.size, entries % network.size, total
