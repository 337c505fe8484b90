"""Operator table: how each operator treats the memory layout of operands.

The rows are in `operators/*.yaml`, one file a family, one line an operator. "Kept" describes eager's kernels as
measured on the CPU (torch 2.15, every dimension order of ranks up to 4, some of rank 5). A compiler that writes the
loops itself can store their result in any order; Inductor does so unless it calls a kernel of eager or of a library.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, model_validator

from frx_graph.errors import ContractError
from frx_graph.rules.card_file import StrictModel, list_card_files, parse_yaml


class LayoutRole(enum.StrEnum):
    """Relation of an operator to layout."""

    ANCHOR = "anchor"
    """Its speed depends on the layout: layouts are chosen for it."""
    AGNOSTIC = "agnostic"
    """Runs equally well in any layout that it keeps, and passes on the given one."""
    REDUCTION = "reduction"
    """Reads any layout equally well; the remaining dimensions can keep their order."""
    BARRIER = "barrier"
    """Ends a region: it needs one layout, its result has other dimensions, or nothing is known."""


class DimensionMap(enum.StrEnum):
    """Relation of the dimensions of a result to those of the operand. Arguments have the names of torch's schema."""

    SAME = "same"
    """One for one, for any sizes: a convolution's channels stay its channels."""
    PERMUTE = "permute"
    """Result dimension i is operand dimension `dims[i]`."""
    TRANSPOSE = "transpose"
    """`dim0` and `dim1` are swapped; the last two if the operator has no such arguments."""
    UNSQUEEZE = "unsqueeze"
    """A dimension of size 1 is put in at `dim`."""
    SQUEEZE = "squeeze"
    """The dimensions in `dim` that have size 1 are removed, or all of size 1 if the operator has no `dim`."""
    REDUCE = "reduce"
    """The dimensions in `dim` are removed, or stay with size 1 under `keepdim`; all of them if there is no `dim`."""
    SELECT = "select"
    """The dimension `dim` is removed."""
    EXPAND = "expand"
    """Aligned at the last dimension. One that was really expanded has stride 0, and the result no order."""
    REGROUP = "regroup"
    """Neighbours merge and split, by the sizes: possible if those that merge are also adjacent in memory."""
    STACK = "stack"
    """A dimension as long as the list of operands is put in at `dim`, just outside the one that follows it."""
    NONE = "none"
    """Not the operand's dimensions."""


class Keeps(enum.StrEnum):
    """Orders of the operand for which the result has the mapped order."""

    ANY = "any"
    """For every order."""
    CHANNELS_LAST = "channels_last"
    """For channels-last operands of rank 4 and 5; otherwise the result is plain."""
    NONE = "none"
    """The result has one order for any operand: `makes`, or plain."""
    UNKNOWN = "unknown"
    """It depends on more than the order of the operand, or was never measured."""


class Needs(enum.StrEnum):
    """Orders of the operands for which a kernel computes what it should; others it may refuse, or get wrong."""

    LAST_INNERMOST = "last_innermost"
    """Those with the last dimension innermost."""
    MEMORY_FORMAT = "memory_format"
    """Plain and channels-last."""


class LayoutOperator(StrictModel):
    """One operator (packet, `aten.cat`), with all its overloads and its in-place form.

    `operands` are the positions of the arguments whose layout counts, None meaning every tensor; a statement about an
    order applies if all of them have it. `results` are the positions of the results that carry the layout, None meaning
    all. `makes` is the fixed order of an operator that keeps none, if it is not plain.

    `devices` are those for which `keeps` was measured or is documented, None meaning all. `generated` is false if
    Inductor calls a kernel instead of writing loops. `misdescribed` is true if the fake of such a kernel is plain where
    the kernel keeps channels-last: Inductor asserts the strides of the fake, and the call fails. `only_on` is the only
    kind of device on which an operator runs. `images` is false if rank 4 is not an image (attention: batch, heads,
    sequence, features). `needs` are the orders that an eager kernel needs, None meaning that it takes all.
    """

    operator: Annotated[str, Field(pattern=r"^\w+\.\w+$")]
    role: LayoutRole
    dimensions: DimensionMap = DimensionMap.SAME
    keeps: Keeps
    operands: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] | None = (0,)
    results: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] | None = None
    makes: tuple[int, ...] | None = None
    devices: frozenset[str] | None = None
    generated: bool = True
    misdescribed: bool = False
    images: bool = True
    needs: Needs | None = None
    only_on: str | None = None

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> LayoutOperator:
        if self.makes is not None and (
            self.keeps is not Keeps.NONE or sorted(self.makes) != list(range(len(self.makes)))
        ):
            raise ValueError("`makes` is the order, a permutation, of an operator that keeps none")
        if self.keeps is Keeps.CHANNELS_LAST and self.dimensions not in (DimensionMap.SAME, DimensionMap.STACK):
            raise ValueError("channels-last is kept by operators that keep the dimensions")
        if self.misdescribed and (self.generated or self.keeps is not Keeps.CHANNELS_LAST):
            raise ValueError("`misdescribed` are called kernels that keep channels-last")
        return self

    def get_kept_orders(self, device: str, inner: str) -> Keeps:
        """Return what is kept on `device` under the compiler `inner`; UNKNOWN if not measured."""
        if self.dimensions is DimensionMap.NONE:
            return Keeps.NONE if self.keeps is Keeps.NONE and self._is_known_on(device) else Keeps.UNKNOWN
        if inner == "inductor" and self.generated:
            return Keeps.ANY
        if inner == "inductor" and self.misdescribed:
            return Keeps.UNKNOWN
        return self.keeps if self._is_known_on(device) else Keeps.UNKNOWN

    @property
    def joins_images(self) -> bool:
        """True for operators that can belong to a region of plain or channels-last images. Each result has the
        operand's dimensions, and channels-last is kept if the operator runs as measured."""
        return (
            self.role in (LayoutRole.ANCHOR, LayoutRole.AGNOSTIC)
            and self.dimensions is DimensionMap.SAME
            and self.keeps in (Keeps.ANY, Keeps.CHANNELS_LAST)
            and self.images
        )

    def is_region_member(self, device: str, inner: str) -> bool:
        """Return True if the operator passes on channels-last or plain, as given, on `device` under `inner`."""
        return self.joins_images and self.get_kept_orders(device, inner) in (Keeps.ANY, Keeps.CHANNELS_LAST)

    def _is_known_on(self, device: str) -> bool:
        return self.devices is None or device in self.devices


POINTWISE = LayoutOperator(operator="any.pointwise", role=LayoutRole.AGNOSTIC, keeps=Keeps.ANY, operands=None)
"""Pointwise operators need no rows: torch tags them, and TensorIterator keeps the order of the operands."""
UNKNOWN = LayoutOperator(
    operator="any.unknown", role=LayoutRole.BARRIER, dimensions=DimensionMap.NONE, keeps=Keeps.UNKNOWN, operands=None
)


class _OperatorFamily(StrictModel):
    family: str
    operators: tuple[LayoutOperator, ...]


def parse_rows(text: str, source: str) -> tuple[LayoutOperator, ...]:
    """Return the rows in `text`. Raises `ContractError`, naming `source`, for malformed YAML and wrong keys."""
    return parse_yaml(text, source, _OperatorFamily).operators


@functools.cache
def load_layout_operators() -> Mapping[str, LayoutOperator]:
    """Return every row by its operator. Raises `ContractError` for a malformed file or an operator with two rows."""
    found: dict[str, LayoutOperator] = {}
    for name, text in list_card_files("operators"):
        for row in parse_rows(text, name):
            if row.operator in found:
                raise ContractError(f"{name}: {row.operator} has a row already")
            found[row.operator] = row
    return found
