"""One row of the operator table: what an operator has to do with the memory layout of its operands.

"Kept" is about eager's kernels and was measured on the CPU (torch 2.15, every dimension order of ranks up to 4, some of
rank 5). A compiler that writes the loops itself can store their result in any order; Inductor does so for what it does
not hand to a kernel of eager's or of a library.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from frx_graph.errors import ContractError
from frx_graph.rules.card_file import card_files, parse_yaml


class LayoutRole(enum.StrEnum):
    """What an operator has to do with layout."""

    ANCHOR = "anchor"
    """Its speed depends on the layout: what a layout is chosen for."""
    AGNOSTIC = "agnostic"
    """Runs equally well in any layout that it keeps, and hands on the one it was given."""
    REDUCTION = "reduction"
    """Reads any layout equally well; what is left of the dimensions can keep its order."""
    BARRIER = "barrier"
    """Stops a region: it wants one layout, its result's dimensions are not its operand's, or nothing is known."""


class DimensionMap(enum.StrEnum):
    """How the dimensions of a result come from those of the operand. Arguments go by their names in torch's schema."""

    SAME = "same"
    """One for one, whatever their sizes: a convolution's channels stay its channels."""
    PERMUTE = "permute"
    """Result dimension i is operand dimension `dims[i]`."""
    TRANSPOSE = "transpose"
    """`dim0` and `dim1` change places; the last two where the operator has no such arguments."""
    UNSQUEEZE = "unsqueeze"
    """A dimension of size 1 is put in at `dim`."""
    SQUEEZE = "squeeze"
    """Those of the dimensions `dim` that have size 1 go, or all of that size where the operator has no `dim`."""
    REDUCE = "reduce"
    """The dimensions `dim` go, or stay with size 1 under `keepdim`; all of them where there is no `dim`."""
    SELECT = "select"
    """The dimension `dim` goes."""
    EXPAND = "expand"
    """Aligned at the last dimension. One that was really expanded has stride 0, and the result no order."""
    REGROUP = "regroup"
    """Neighbours merge and split, by the sizes: possible where those that merge also lie side by side in memory."""
    STACK = "stack"
    """A dimension as long as the list of operands is put in at `dim`, just outside the one that follows it."""
    NONE = "none"
    """Not the operand's dimensions."""


class Keeps(enum.StrEnum):
    """For which orders of the operand the result has the mapped one."""

    ANY = "any"
    """For every order."""
    CHANNELS_LAST = "channels_last"
    """For channels-last operands of rank 4 and 5. The result is plain else."""
    NONE = "none"
    """The result has one order whatever the operand's is: `makes`, or plain."""
    UNKNOWN = "unknown"
    """It depends on more than the order of the operand, or was never measured."""


class Needs(enum.StrEnum):
    """The orders of the operands for which a kernel computes what it should. For others it may refuse, or compute
    something else."""

    LAST_INNERMOST = "last_innermost"
    """Those with the last dimension innermost."""
    MEMORY_FORMAT = "memory_format"
    """Plain and channels-last."""


class LayoutOperator(BaseModel):
    """One operator (packet, `aten.cat`), all its overloads and its in-place form.

    `operands` are the positions of the arguments whose layout counts, None meaning every tensor; what is said of one
    order holds where all of them are in it. `results` are the positions of those results that carry the layout, None
    meaning all. `makes` is the fixed order of an operator that keeps none, if it is not plain.

    `devices` are those for which `keeps` was measured or is documented, None meaning all. `generated` is false where
    Inductor calls a kernel instead of writing loops. `only_on` is the kind of device without which an operator cannot
    run. `images` is false where rank 4 is no image (attention: batch, heads, sequence, features). `needs` are the
    orders that an eager kernel needs, None meaning that it takes all.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    operator: Annotated[str, Field(pattern=r"^\w+\.\w+$")]
    role: LayoutRole
    dimensions: DimensionMap = DimensionMap.SAME
    keeps: Keeps
    operands: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] | None = (0,)
    results: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] | None = None
    makes: tuple[int, ...] | None = None
    devices: frozenset[str] | None = None
    generated: bool = True
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
        return self

    def kept(self, device: str, inner: str) -> Keeps:
        """What is kept on `device` under the compiler `inner`. Raises nothing; not measured is UNKNOWN."""
        if self.dimensions is DimensionMap.NONE:
            return Keeps.NONE if self.keeps is Keeps.NONE and self._known_on(device) else Keeps.UNKNOWN
        if inner == "inductor" and self.generated:
            return Keeps.ANY
        return self.keeps if self._known_on(device) else Keeps.UNKNOWN

    @property
    def joins_images(self) -> bool:
        """True for operators that can belong to a region of plain or channels-last images: each result has the
        operand's dimensions, and channels-last is kept where the operator runs as it was measured."""
        return (
            self.role in (LayoutRole.ANCHOR, LayoutRole.AGNOSTIC)
            and self.dimensions is DimensionMap.SAME
            and self.keeps in (Keeps.ANY, Keeps.CHANNELS_LAST)
            and self.images
        )

    def joins(self, device: str, inner: str) -> bool:
        """True if the operator hands on channels-last or plain, whichever it is given, on `device` under `inner`."""
        return self.joins_images and self.kept(device, inner) in (Keeps.ANY, Keeps.CHANNELS_LAST)

    def _known_on(self, device: str) -> bool:
        return self.devices is None or device in self.devices


POINTWISE = LayoutOperator(operator="any.pointwise", role=LayoutRole.AGNOSTIC, keeps=Keeps.ANY, operands=None)
"""Pointwise operators need no rows: torch tags them, and TensorIterator keeps the order of the operands."""
UNKNOWN = LayoutOperator(
    operator="any.unknown",
    role=LayoutRole.BARRIER,
    dimensions=DimensionMap.NONE,
    keeps=Keeps.UNKNOWN,
    operands=None,
)


class _Family(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    family: str
    operators: tuple[LayoutOperator, ...]


def parse_rows(text: str, source: str) -> tuple[LayoutOperator, ...]:
    """Return the rows in `text`. Raises `ContractError`, naming `source`, for malformed YAML and wrong keys."""
    return parse_yaml(text, source, _Family).operators


@functools.cache
def layout_operators() -> Mapping[str, LayoutOperator]:
    """Every row by its operator. Raises `ContractError` where a file is malformed or an operator has two rows."""
    found: dict[str, LayoutOperator] = {}
    for name, text in card_files("operators"):
        for row in parse_rows(text, name):
            if row.operator in found:
                raise ContractError(f"{name}: {row.operator} has a row already")
            found[row.operator] = row
    return found
