"""Find the loops in the control flow of a function, and their instructions.

A backward branch alone makes no loop, since compilers move blocks to places after those that they jump back to. The
instructions of a loop need not be adjacent. Algorithm: Havlak, Nesting of Reducible and Irreducible Loops (1997), in
about linear time at any depth.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Jump:
    """A branch: the instruction at `place` may continue at `target`, or after itself if it `may_pass`."""

    place: int
    target: int
    may_pass: bool


@dataclass(frozen=True, slots=True)
class FlowLoop:
    """A loop. `header` is the place of the first instruction. `spans` are the places, from (inclusive) and to
    (exclusive), outside inner loops. `parent` is the header of the loop around it, None for an outer one."""

    header: int
    spans: tuple[tuple[int, int], ...]
    parent: int | None


def find_loops(length: int, jumps: Sequence[Jump], ends: Sequence[int]) -> tuple[FlowLoop, ...]:
    """Return the loops of a function of `length` instructions, inner ones before those around them. The instructions at
    the places `ends` leave the function."""
    # Without a backward jump there is no cycle.
    if not any(jump.target <= jump.place for jump in jumps):
        return ()
    splits = {0, *(jump.target for jump in jumps), *(jump.place + 1 for jump in jumps), *(end + 1 for end in ends)}
    starts = sorted(split for split in splits if split < length)
    after = _find_successors(length, starts, jumps, ends)
    preorder, last = _number_blocks(after)
    loops, around = _find_innermost_headers(after, preorder, last)
    spans: dict[int, list[tuple[int, int]]] = {}
    for block, (begin, end) in enumerate(zip(starts, (*starts[1:], length), strict=True)):
        inside = block if block in loops else around.get(block)
        if inside is not None:
            spans.setdefault(inside, []).append((begin, end))
    parents = {header: around.get(header) for header in loops}
    return tuple(
        FlowLoop(starts[header], tuple(spans[header]), None if parent is None else starts[parent])
        for header, parent in parents.items()
    )


def _find_successors(length: int, starts: Sequence[int], jumps: Sequence[Jump], ends: Sequence[int]) -> list[list[int]]:
    def block(place: int) -> int:
        return bisect.bisect_right(starts, place) - 1

    after: list[list[int]] = [[] for _ in starts]
    closed = {jump.place for jump in jumps if not jump.may_pass} | set(ends)
    for number, end in enumerate((*starts[1:], length)):
        if end - 1 not in closed and number + 1 < len(starts):
            after[number].append(number + 1)
    for jump in jumps:
        if jump.target < length:
            after[block(jump.place)].append(block(jump.target))
    return after


def _number_blocks(after: Sequence[Sequence[int]]) -> tuple[dict[int, int], dict[int, int]]:
    """Return the preorder number of each reachable block, and the highest number in the tree below it."""
    preorder, last = {0: 0}, {}
    path: list[tuple[int, Iterator[int]]] = [(0, iter(after[0]))]
    while path:
        block, following = path[-1]
        for one in following:
            if one not in preorder:
                preorder[one] = len(preorder)
                path.append((one, iter(after[one])))
                break
        else:
            path.pop()
            last[block] = len(preorder) - 1
    return preorder, last


def _find_innermost_headers(
    after: Sequence[Sequence[int]], preorder: dict[int, int], last: dict[int, int]
) -> tuple[dict[int, None], dict[int, int]]:
    """Return the headers of loops, inner ones first, and by block the header of the innermost loop around it; for a
    header, that of the loop around its own."""
    before: dict[int, list[int]] = {block: [] for block in preorder}
    back: dict[int, list[int]] = {}
    for block in preorder:
        for one in after[block]:
            goes_back = preorder[one] <= preorder[block] <= last[one]
            (back.setdefault(one, []) if goes_back else before[one]).append(block)
    loops: dict[int, None] = {}
    around: dict[int, int] = {}
    collapsed: dict[int, int] = {}

    def find_outermost(block: int) -> int:
        """Return the header of the outermost loop found so far around `block`, or the block itself."""
        top = block
        while top in collapsed:
            top = collapsed[top]
        while block != top:
            collapsed[block], block = top, collapsed[block]
        return top

    for header in sorted(back, key=lambda block: -preorder[block]):
        inside: dict[int, None] = {}
        waiting = [find_outermost(block) for block in back[header]]
        while waiting:
            block = waiting.pop()
            if block == header or block in inside:
                continue
            inside[block] = None
            # An entry that bypasses the header, from a block that the header does not reach, stays outside.
            reached = (find_outermost(one) for one in before[block])
            waiting.extend(one for one in reached if preorder[header] <= preorder[one] <= last[header])
        loops[header] = None
        around |= dict.fromkeys(inside, header)
        collapsed |= dict.fromkeys(inside, header)
    return loops, around
