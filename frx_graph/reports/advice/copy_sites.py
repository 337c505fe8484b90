"""Bytes per call site: where in the source the layout copies of a step come from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import Markup

from frx_graph.capture.call_site import CallSite, common_module_path
from frx_graph.records import Copy, CopyKind
from frx_graph.reports.render.quantities import byte_count
from frx_graph.reports.render.svg import element, title

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


def copy_sites(copies: Iterable[Copy]) -> tuple[CopySite, ...]:
    """One entry a call site, most bytes first."""
    grouped: dict[tuple[str, int], list[Copy]] = defaultdict(list)
    for copy in copies:
        grouped[copy.site.location].append(copy)
    sites = [_site(members) for members in grouped.values()]
    return tuple(sorted(sites, key=lambda each: (-each.bytes, *each.site.location)))


def _site(members: list[Copy]) -> CopySite:
    first = members[0].site
    module_path = common_module_path(sorted({copy.site.module_path for copy in members}))
    by_kind = [(kind, sum(copy.bytes for copy in members if copy.kind is kind)) for kind in KIND_WORDS]
    return CopySite(
        site=CallSite(first.file, first.line, first.function, module_path),
        operators=tuple(sorted({copy.operator for copy in members})),
        count=sum(copy.count for copy in members),
        bytes=sum(copy.bytes for copy in members),
        by_kind=tuple((kind, size) for kind, size in by_kind if size),
    )


def bar(site: CopySite, most: int) -> Markup:
    """A stacked bar of the site's kinds, full where the site has `most` bytes. It stands beside its number in words."""
    drawn, x = [], 0.0
    for kind, size in site.by_kind:
        width = 100.0 * size / most if most else 0.0
        note = title(f"{KIND_WORDS[kind]}: {byte_count(size)}")
        drawn.append(element("rect", note, x=x, y=0, width=width, height=10, class_=kind_class(kind)))
        x += width
    return element(
        "svg", *drawn, class_="bar", viewBox="0 0 100 10", preserveAspectRatio="none", aria_hidden="true",
        focusable="false",
    )  # fmt: skip


def kind_class(kind: CopyKind) -> str:
    """The CSS class that colours a kind."""
    return f"kind-{kind.value}"
