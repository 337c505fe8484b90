"""An operator call whose loop a compiler writes itself: what is timed of it, apart from the kernel that eager runs."""

from __future__ import annotations

from dataclasses import dataclass

from frx_graph.facts.operator_signature import OperatorSignature


@dataclass(frozen=True, slots=True)
class ReadResult:
    """A result that somebody reads: which one the operator returns there, and the strides that it is written with."""

    position: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class GeneratedCall:
    """One overload in a loop of its own. `signature` says how its operands lie, `results` what is written.

    `times` are the calls that share the loop: upsampling gathers several neighbours of each place from one operand.
    """

    signature: OperatorSignature
    results: tuple[ReadResult, ...]
    times: int = 1
