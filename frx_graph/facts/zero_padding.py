"""Zeros around an image: how many on each side, and whether convolutions alone read the result."""

from __future__ import annotations

from dataclasses import dataclass

from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts
from frx_graph.facts.operator_overload import get_argument

OPERATOR = "aten.constant_pad_nd"


@dataclass(frozen=True, slots=True)
class Sides:
    """Zeros in front of and behind one dimension of an image."""

    front: int
    back: int

    @property
    def symmetric(self) -> bool:
        """True if both sides get as many."""
        return self.front == self.back

    @property
    def padding(self) -> int:
        """The padding of a convolution, which is the same on both sides."""
        return max(self.front, self.back)

    def shift_kernel(self, dilation: int) -> tuple[int, int]:
        """Return the zeros in front of and behind a kernel that make up for the larger `padding`."""
        return (self.padding - self.front) // dilation, (self.padding - self.back) // dilation


def split_padding(op: OpFacts, rank: int) -> tuple[Sides, ...] | None:
    """Return the zeros that `op` adds to each dimension of an image of `rank` dimensions; None for other padding."""
    pads, value = get_argument(op, "pad"), get_argument(op, "value")
    if op.operator != OPERATOR or op.symbolic or value != 0 or not isinstance(pads, (tuple, list)) or len(pads) % 2:
        return None
    counts = [one for one in pads if isinstance(one, int) and one >= 0]
    spatial = rank - 2
    if len(counts) < len(pads) or spatial < 1 or any(counts[2 * spatial :]):
        return None
    # The last dimension comes first, and outer ones may be missing.
    filled = (counts + [0] * 2 * spatial)[: 2 * spatial]
    return tuple(Sides(*filled[start : start + 2]) for start in range(2 * spatial - 2, -1, -2))


def list_convolutions(padded: ValueFacts, facts: GraphFacts) -> tuple[OpFacts, ...]:
    """Return the convolutions that read `padded` as their image; none if anything else reads it, too."""
    readers = facts.get_users(padded.name)
    return tuple(readers) if all(_reads_as_image(reader, padded) for reader in readers) else ()


def _reads_as_image(reader: OpFacts, padded: ValueFacts) -> bool:
    return (
        reader.operator == "aten.convolution"
        and reader.inputs.count(padded.name) == 1
        and reader.inputs[0] == padded.name
        and not get_argument(reader, "transposed")
    )


def repeat_number(numbers: object, count: int) -> tuple[int, ...]:
    """Return one number for each dimension: torch lets a single one stand for all."""
    assert isinstance(numbers, (tuple, list))
    return tuple(numbers) if len(numbers) == count else (numbers[0],) * count
