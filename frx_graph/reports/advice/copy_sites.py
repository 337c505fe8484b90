"""Group layout copies by call site, and a finding's copies by operator and cause."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import Markup

from frx_graph.capture.call_site import CallSite, merge_module_paths
from frx_graph.capture.captured_graph import Phase
from frx_graph.records import Basis, Copy, CopyKind, OperandRole
from frx_graph.reports.advice.comparison import group_by_location
from frx_graph.reports.render.quantities import format_byte_count
from frx_graph.reports.render.svg import draw_rect, make_inline_bar

KIND_WORDS = {
    CopyKind.REORDER: "library reorder",
    CopyKind.OPERATOR: "inside an operator",
    CopyKind.EXPLICIT: "asked for (contiguous, clone, to)",
    CopyKind.RESHAPE: "reshape that copies",
}


@dataclass(frozen=True, slots=True)
class CopySite:
    """All layout copies at one line of source; `by_kind` holds the kinds that occur, in a fixed order."""

    site: CallSite
    operators: tuple[str, ...]
    count: int
    bytes: int
    by_kind: tuple[tuple[CopyKind, int], ...]


def group_by_site(copies: Iterable[Copy]) -> tuple[CopySite, ...]:
    """Return one entry per call site, most bytes first."""
    sites = map(_merge_copies, group_by_location(copies).values())
    return tuple(sorted(sites, key=lambda each: (-each.bytes, *each.site.location)))


def _merge_copies(members: list[Copy]) -> CopySite:
    first = members[0].site
    module_path = merge_module_paths(sorted({copy.site.module_path for copy in members}))
    by_kind = [(kind, sum(copy.bytes for copy in members if copy.kind is kind)) for kind in KIND_WORDS]
    return CopySite(
        site=CallSite(first.file, first.line, first.function, module_path),
        operators=tuple(sorted({copy.operator for copy in members})),
        count=sum(copy.count for copy in members),
        bytes=sum(copy.bytes for copy in members),
        by_kind=tuple((kind, size) for kind, size in by_kind if size),
    )


def draw_copy_bar(site: CopySite, most: int) -> Markup:
    """Return a stacked bar of the site's kinds, full if the site has `most` bytes."""
    drawn, x = [], 0.0
    for kind, size in site.by_kind:
        width = 100.0 * size / most if most else 0.0
        drawn.append(draw_rect(x, 0, width, 10, get_kind_class(kind), f"{KIND_WORDS[kind]}: {format_byte_count(size)}"))
        x += width
    return make_inline_bar("bar", *drawn)


def get_kind_class(kind: CopyKind) -> str:
    """Return the CSS class that colours a kind."""
    return f"kind-{kind.value}"


@dataclass(frozen=True, slots=True)
class CopyRow:
    """Copies of one operator, operand, kind and cause; `values` and `nodes` are distinct, in order."""

    operator: str
    role: OperandRole
    kind: CopyKind
    phase: Phase
    basis: Basis
    cause: str
    count: int
    bytes: int
    values: tuple[str, ...]
    nodes: tuple[str, ...]


def group_by_cause(copies: Iterable[Copy]) -> tuple[CopyRow, ...]:
    """Return the rows, most bytes first."""
    grouped: dict[tuple[str, OperandRole, CopyKind, Phase, Basis, str], list[Copy]] = defaultdict(list)
    for copy in copies:
        grouped[copy.operator, copy.role, copy.kind, copy.phase, copy.basis, copy.cause].append(copy)
    rows = [
        CopyRow(
            *key,
            count=sum(copy.count for copy in members),
            bytes=sum(copy.bytes for copy in members),
            values=tuple(dict.fromkeys(copy.value for copy in members)),
            nodes=tuple(dict.fromkeys(copy.node for copy in members)),
        )
        for key, members in grouped.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.bytes))
