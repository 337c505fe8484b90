"""Divide pieces into regions that can each be computed at once."""

from __future__ import annotations

from collections.abc import Sequence

from frx_graph.facts.graph_facts import GraphFacts
from frx_graph.passes.rewrites.region_pieces import Piece


def divide_pieces(pieces: Sequence[Piece], facts: GraphFacts) -> list[list[Piece]]:
    """Return regions: a piece joins the region that it reads from, or one that reads the same, where no value would
    leave a region and come back. Each region's pieces are in the graph's order."""
    by_node = {piece.nodes[-1]: piece for piece in pieces}
    inner = {node for piece in pieces for node in piece.nodes[:-1]}
    regions: list[list[Piece]] = []
    needed: list[int] = []
    """For each region, the set of regions that it depends on, as bits."""
    home: dict[str, int] = {}
    reached: dict[str, int] = {}
    """For each value, the regions that it depends on, with its own, as bits."""
    read_by: dict[str, list[int]] = {}

    def close(bits: int) -> int:
        for number, others in enumerate(needed):
            if bits >> number & 1:
                bits |= others
        return bits

    for op in facts.ops:
        if op.node in inner:
            continue
        piece = by_node.get(op.node)
        reads = op.inputs if piece is None else piece.reads
        if piece is None:
            bits = 0
            for name in reads:
                bits |= reached.get(name, 0)
            reached.update(dict.fromkeys(op.outputs, bits))
            continue
        candidates = [home[name] for name in reads if name in home]
        candidates += [number for name in reads for number in read_by.get(name, ())]
        for number in dict.fromkeys(candidates):
            outside = 0
            for name in reads:
                if home.get(name) != number:
                    outside |= reached.get(name, 0)
            outside = close(outside)
            if not outside >> number & 1:
                break
        else:
            number, outside = len(regions), 0
            for name in reads:
                outside |= reached.get(name, 0)
            outside = close(outside)
            regions.append([])
            needed.append(0)
        regions[number].append(piece)
        needed[number] |= outside
        for other, others in enumerate(needed):
            if others >> number & 1:
                needed[other] = others | needed[number]
        home[piece.result] = number
        reached[piece.result] = 1 << number
        for name in reads:
            read_by.setdefault(name, []).append(number)
    return regions
