"""Define records of measured operators (copies inside, implementation, times) and of copies in a real step."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from frx_graph.capture.call_site import CallSite
from frx_graph.capture.captured_graph import Phase

ObservedKind: TypeAlias = Literal["explicit", "reshape", "operator", "reorder"]
"""Causes of a copy: the program asked for it, a reshape could not be a view, an operator copied an operand, a library
converted to its own format."""
ObservedRole: TypeAlias = Literal["input", "weight", "output"]


class Mechanism(enum.StrEnum):
    """Mechanisms that copy."""

    ATEN = "aten::copy_"
    """An `aten::copy_` inside `aten::contiguous`, `aten::clone` or `aten::reshape`."""
    ONEDNN = "onednn reorder"
    """A oneDNN reorder between two memory formats."""
    KERNEL = "conversion kernel"
    """A layout-conversion kernel of a GPU library (`nchwToNhwcKernel` and its kind)."""


@dataclass(frozen=True, slots=True)
class SeenCopy:
    """One copy as the profiler or the oneDNN log showed it. `source` and `target` name the two memory formats (oneDNN
    tags, or stride lists for ATen)."""

    mechanism: Mechanism
    shape: tuple[int, ...]
    itemsize: int
    source: str
    target: str
    role: ObservedRole
    """What the copied tensor is to the operator."""
    operand: int | None = None
    """Position of the copied tensor among the operator's tensor arguments; None for a result or where it is unknown."""

    @property
    def bytes(self) -> int:
        """Traffic: each element is read once and written once."""
        return 2 * self.itemsize * math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class OperatorMeasurement:
    """One operator call, run by itself on the device at hand.

    `implementation` is the library's own name for the kernel that it chose (oneDNN: `jit:avx512_core`), None where
    nothing names it.
    """

    copies: tuple[SeenCopy, ...]
    implementation: str | None = None


@dataclass(frozen=True, slots=True)
class LayoutTimes:
    """Median seconds of one anchor operator in each layout; None where it was not, or could not be, measured.

    The channels-last time has input, weight and gradient in channels-last: what a region pays inside, conversions at
    its edges not included. If the times are not `steady`, measuring again may turn the order around.
    """

    plain_seconds: float | None
    channels_last_seconds: float | None
    steady: bool = True

    def __add__(self, other: LayoutTimes) -> LayoutTimes:
        """The times of both calls together; unknown where one of them is."""
        return LayoutTimes(
            _add_known(self.plain_seconds, other.plain_seconds),
            _add_known(self.channels_last_seconds, other.channels_last_seconds),
            self.steady and other.steady,
        )

    def drop_unsteady(self) -> LayoutTimes:
        """Return the times with no difference if they are not steady."""
        if self.steady or self.gain_seconds is None:
            return self
        both = (self.plain_seconds or 0.0) + (self.channels_last_seconds or 0.0)
        return LayoutTimes(both / 2, both / 2, steady=False)

    @property
    def gain_seconds(self) -> float | None:
        """Seconds saved per call by channels-last over plain; negative where plain is faster."""
        if self.plain_seconds is None or self.channels_last_seconds is None:
            return None
        return self.plain_seconds - self.channels_last_seconds


def _add_known(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


OUTSIDE = "<outside of compiled graphs>"
"""The operator name for copies that a compiled program makes outside of the graphs."""


@dataclass(frozen=True, slots=True)
class ObservedCopy:
    """`operator` is the ATen operator that made the copy, or the composite one that it is part of (`aten.reshape`,
    `aten.matmul`). `bytes` is traffic, read plus written. `source` and `target` name the two formats: oneDNN tags, or
    stride lists."""

    operator: str
    kind: ObservedKind
    role: ObservedRole
    site: CallSite
    phase: Phase
    shape: tuple[int, ...]
    bytes: int
    source: str
    target: str

    @staticmethod
    def from_seen(
        seen: SeenCopy, operator: str, kind: ObservedKind, role: ObservedRole, site: CallSite, phase: Phase
    ) -> ObservedCopy:
        """Return the copy that the profiler or the oneDNN log showed, with its place in the program."""
        return ObservedCopy(operator, kind, role, site, phase, seen.shape, seen.bytes, seen.source, seen.target)
