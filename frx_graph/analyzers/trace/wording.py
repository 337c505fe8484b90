"""What to say about the copies of a trace: title and fix of each rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from frx_graph.evidence.trace.events import Operand
from frx_graph.records import Effort, Risk


@dataclass(frozen=True, slots=True)
class Wording:
    """Title and fix of one finding, with what the fix takes."""

    title: str
    fix: str
    effort: Effort
    risk: Risk


def advice_on(
    rule: str, operators: Sequence[str], operands: Sequence[Operand | None], *, needless: bool = False
) -> Wording:
    """Of `rule`, for copies of `operands` that `operators` are to blame for. `needless` copies change no strides."""
    names = ", ".join(name.removeprefix("aten::") for name in operators[:3])
    several = len(operators) > 1
    memory_format = _memory_format(operands)
    if rule == "FRX007":
        return Wording(
            title=f"The weights of {names} are converted on every call",
            fix=f"convert them once, before training or inference: `model.to(memory_format={memory_format})`",
            effort=Effort.ONE_LINE,
            risk=Risk.LOW,
        )
    if rule == "FRX004":
        return Wording(
            title=f"{names} {'convert their' if several else 'converts its'} tensors between plain and channels-last",
            fix=f"run the whole region in channels-last, so that nothing is left to convert: "
            f"`model.to(memory_format={memory_format})` and `x = x.to(memory_format={memory_format})`",
            effort=Effort.ONE_LINE,
            risk=Risk.LOW,
        )
    if rule == "FRX002" and needless:
        return Wording(
            title=f"{names} {'copy' if several else 'copies'} into the layout that the value has",
            fix="drop it, unless the value or the copy is written to afterwards",
            effort=Effort.ONE_LINE,
            risk=Risk.MEDIUM,
        )
    if rule == "FRX002":
        return Wording(
            title=f"{names} {'copy' if several else 'copies'}",
            fix="make the copy once upstream, or have the producer write the layout that is wanted here; drop it where "
            "the consumer takes the strides as they are",
            effort=Effort.LOCAL,
            risk=Risk.LOW,
        )
    return Wording(
        title=f"{names} {'copy' if several else 'copies'} an operand inside",
        fix="give the operator strides that it takes as they are: store the producer's result that way, or reorder the "
        "dimensions after the operator and not before it",
        effort=Effort.LOCAL,
        risk=Risk.LOW,
    )


def _memory_format(operands: Sequence[Operand | None]) -> str:
    """Channels-last is another format for volumes."""
    ranks = {len(operand.shape) for operand in operands if operand is not None}
    return "torch.channels_last_3d" if ranks == {5} else "torch.channels_last"
