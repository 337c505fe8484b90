"""Records of layout work in files of a run: copies, conversions, and the operators around them."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from frx_graph.analyzers.trace.kernel_names import KernelClass, classify_kernel
from frx_graph.capture.call_site import CallSite
from frx_graph.capture.captured_graph import Phase
from frx_graph.evidence.measurement import Measurement
from frx_graph.evidence.trace.events import Operand
from frx_graph.records import CopyKind, OperandRole

ANY_ROLE = frozenset(OperandRole)
CONVERSIONS: frozenset[CopyKind | None] = frozenset({CopyKind.REORDER, CopyKind.OPERATOR, None})
"""Kinds that findings may give to a library's work inside its operator; None means the whole operator."""
ANY_KIND: frozenset[CopyKind | None] = frozenset({*CopyKind, None})
COPIES: frozenset[CopyKind | None] = frozenset({CopyKind.EXPLICIT, CopyKind.RESHAPE, CopyKind.OPERATOR})
"""Kinds of copies that ATen and Inductor make; a library's conversions inside its operators are not among them."""


class Work(enum.StrEnum):
    """Kinds of layout work."""

    CONVERSION = "conversion"
    """A library changes the layout of a tensor inside its operator."""
    COPY = "copy"
    """A tensor is copied from some strides to others."""
    UNCOALESCED = "uncoalesced access"
    """A kernel reads more sectors than its elements fill."""


@dataclass(frozen=True, slots=True)
class ObservedCall:
    """A call of an operator, by the profiler's name. `operands` are its tensors without scalars, None if shapes were
    not recorded. Without `complete`, they are only the first ones."""

    operator: str
    operands: tuple[Operand, ...] | None = None
    complete: bool = True


@dataclass(frozen=True, slots=True)
class ElementCount:
    """The least and most elements that were copied, from a kernel's launch or reads."""

    least: int
    most: int


@dataclass(frozen=True, slots=True)
class RunSetting:
    """The device type of a program, and whether Inductor compiled it; None if unknown."""

    device: str
    compiled: bool | None

    def is_compatible(self, other: RunSetting) -> bool:
        """Return True unless the settings are known to differ."""
        known = self.compiled is not None and other.compiled is not None
        return self.device == other.device and (not known or self.compiled is other.compiled)


@dataclass(frozen=True, slots=True)
class Observation:
    """The same work of one operator at one place, over all occurrences.

    `kernels` did the work, the most frequent first; there are none if an operator copies by itself. `calls` are the
    operators around it, innermost first, empty if the file does not record them. `ranges` are other names that the
    program gave. `copied` is the tensor before the copy. `kinds` are names that a finding may use; `roles` are possible
    roles of the tensor. `site` and `phase` are None unless recorded.

    `count`, `seconds` (of kernels, or of the copying operators on a CPU) and `bytes` (traffic) cover all `steps`, or
    the whole file if that is None. Unknown values are None. `where` is the place of the first occurrence in the file.
    """

    work: Work
    kernels: tuple[str, ...]
    where: str
    count: int
    steps: int | None = None
    calls: tuple[ObservedCall, ...] = ()
    ranges: tuple[str, ...] = ()
    copied: Operand | None = None
    elements: ElementCount | None = None
    kinds: frozenset[CopyKind | None] = ANY_KIND
    roles: frozenset[OperandRole] = ANY_ROLE
    site: CallSite | None = None
    phase: Phase | None = None
    seconds: float | None = None
    bytes: int | None = None
    measurements: tuple[Measurement, ...] = ()
    detail: str = ""
    """Further remarks for people."""


def derive_roles(kernels: Iterable[str], phase: Phase | None) -> frozenset[OperandRole]:
    """Derive roles from the direction of conversion kernels; a backward pass also converts gradients."""
    kinds = set(map(classify_kernel, kernels))
    if phase is Phase.FORWARD and kinds == {KernelClass.TO_CHANNELS_LAST}:
        return frozenset({OperandRole.INPUT, OperandRole.WEIGHT})
    if phase is Phase.FORWARD and kinds == {KernelClass.FROM_CHANNELS_LAST}:
        return frozenset({OperandRole.OUTPUT})
    return ANY_ROLE


@dataclass(frozen=True, slots=True)
class QuietCall:
    """Calls of an operator on the same operands, without layout work that the file would show."""

    call: ObservedCall
    phase: Phase | None
    count: int


@dataclass(frozen=True)
class RunFile:
    """A file of a run. `shows` are the kinds of copies that are visible in it."""

    source: str
    setting: RunSetting
    observations: tuple[Observation, ...]
    quiet: tuple[QuietCall, ...] = ()
    shows: frozenset[CopyKind | None] = frozenset()
