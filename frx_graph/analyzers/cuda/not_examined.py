"""List what the analysis of CUDA source cannot judge, so that no finding there does not read as nothing to find."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from frx_graph.evidence.cuda.source import CudaSource, Space, StrideKind

_EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class NotExamined:
    """A kind of code that is not judged: its `count`, the consequence, and some names or texts as examples."""

    kind: str
    count: int
    consequence: str
    examples: tuple[str, ...]


def list_not_examined(source: CudaSource) -> tuple[NotExamined, ...]:
    """Return what the findings do not cover in a file. Only kinds that the file has are listed."""
    kinds = (
        ("Kernels that could not be read", "nothing in them is judged", source.unread),
        ("Headers that were not found", "what they define is unknown", source.unread_headers),
        (
            "Kernels read in part",
            "the rest of them is not judged",
            (kernel.name for kernel in source.kernels if not kernel.complete),
        ),
        (
            "Called functions that are not in the file or its headers",
            "their accesses and barriers are not judged",
            (call.name for kernel in source.kernels for call in kernel.calls if not call.pure),
        ),
        ("Global accesses with an unknown index", "their coalescing is not judged", _list_unknown_accesses(source)),
        (
            "Kernels that the file does not launch",
            "their block sizes are unknown",
            (kernel.name for kernel in source.kernels if kernel.name not in source.launches_by_name),
        ),
    )
    found = ((kind, consequence, tuple(dict.fromkeys(names))) for kind, consequence, names in kinds)
    return tuple(
        NotExamined(kind, len(names), consequence, names[:_EXAMPLES]) for kind, consequence, names in found if names
    )


def _list_unknown_accesses(source: CudaSource) -> Iterator[str]:
    for kernel in source.kernels:
        for access in kernel.accesses:
            if access.space is Space.GLOBAL and access.stride.kind is StrideKind.UNKNOWN:
                yield f"{source.describe_line(access.step.line)}: {access.text}"
