"""Map of copies: a graph as a wrapped band of blocks, as wide as the bytes they move.

A block is one `LayoutSpan`, coloured by layout. It is filled from below by the share of layout copies in the traffic,
so equal areas are equal bytes. A notch above the band marks every block that copies, however narrow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup

from frx_graph.advice import GraphSummary, LayoutSpan
from frx_graph.capture.captured_graph import Phase
from frx_graph.facts.layout import Layout
from frx_graph.reports.render.quantities import format_byte_count, format_count, format_percent
from frx_graph.reports.render.svg import (
    can_fit,
    clip_text,
    draw_rect,
    draw_text,
    make_element,
    make_picture,
    make_tooltip,
)
from frx_graph.support.plain_text import clean_line

BAND = 46.0
NOTCH = 7.0
LABEL_FONT = 11.0
LABEL_LINE = 18.0
ROW_GAP = 14.0
ROW = LABEL_LINE + NOTCH + BAND + ROW_GAP
PHASE_LINE = 20.0
NARROWEST_BLOCK = 2.0
NARROWEST_AVERAGE = 40.0
"""A band wraps into more rows until its blocks are this wide on average."""
MOST_ROWS = 10
READABLE_SHARE = 0.7
"""Share of a row whose module names must fit; it limits their depth."""

NO_LAYOUT = "-"
LAYOUT_WORDS = {
    Layout.PLAIN: "plain (contiguous)",
    Layout.CHANNELS_LAST: "channels last",
    Layout.PERMUTED: "permuted",
    Layout.STRIDED: "strided, with gaps",
    Layout.EXPANDED: "expanded",
    NO_LAYOUT: "no image layout",
}


@dataclass(frozen=True, slots=True)
class _RowPiece:
    """The part of a block in one row."""

    span: LayoutSpan
    row: int
    x: float
    width: float
    first: bool


def get_layout_class(layout: str) -> str:
    """Return the CSS class that colours a layout; `lay-other` for unknown names."""
    if layout == NO_LAYOUT:
        return "lay-none"
    return f"lay-{layout.replace('_', '-')}" if layout in LAYOUT_WORDS else "lay-other"


def describe_layout(layout: str) -> str:
    """Describe the layout in words."""
    return LAYOUT_WORDS.get(layout) or clean_line(layout)


def draw_layout_map(graph: GraphSummary, width: float) -> Markup | None:
    """Return the picture of one graph, `width` units wide, one phase below the other; None without traffic."""
    phases = [
        (phase, spans) for phase in Phase if (spans := [s for s in graph.spans if s.phase is phase and s.bytes > 0])
    ]
    if not phases:
        return None
    heaviest, blocks = max((sum(span.bytes for span in spans), len(spans)) for _, spans in phases)
    most = max(len(spans) for _, spans in phases)
    rows = max(1, min(MOST_ROWS, round(most * NARROWEST_AVERAGE / width + 0.5)))
    scale = (rows * width - blocks * NARROWEST_BLOCK) / heaviest
    shared = _count_shared_parts([span.module_path for _, spans in phases for span in spans])
    drawn: list[Markup] = []
    top = 0.0
    for phase, spans in phases:
        total = sum(span.bytes for span in spans)
        copied = sum(span.copy_bytes for span in spans)
        caption = f"{phase.value}: {format_byte_count(total)} moved, {format_byte_count(copied)} of it by layout copies"
        drawn.append(draw_text(caption, 0, top + LABEL_FONT + 2, "map-caption"))
        top += PHASE_LINE
        used = 0
        for row, pieces in groupby(_split_into_rows(spans, width, scale), key=lambda piece: piece.row):
            members, place = list(pieces), top + row * ROW
            drawn += _draw_brackets(members, place, shared)
            drawn += (_draw_block(piece, place + LABEL_LINE + NOTCH) for piece in members)
            used = row + 1
        top += used * ROW
    return make_picture(width, top, _describe_graph(graph), drawn, "map")


def _split_into_rows(spans: Sequence[LayoutSpan], width: float, scale: float) -> Iterator[_RowPiece]:
    """Return the blocks in order, cut at the end of a row. `scale` is in units per byte, on top of a minimal width."""
    x, row = 0.0, 0
    for span in spans:
        left, first = NARROWEST_BLOCK + span.bytes * scale, True
        while left > 0.0:
            room = width - x
            if room < NARROWEST_BLOCK:
                x, row = 0.0, row + 1
                continue
            taken = min(left, room)
            yield _RowPiece(span, row, x, taken, first)
            rest = left - taken
            x, left, first = x + taken, rest if rest >= NARROWEST_BLOCK else 0.0, False


def _draw_block(piece: _RowPiece, top: float) -> Markup:
    span = piece.span
    share = min(span.copy_bytes / span.bytes, 1.0)
    children = [
        make_tooltip(_describe_span(span)),
        draw_rect(piece.x, top, piece.width, BAND, get_layout_class(span.layout)),
    ]
    if span.copies:
        height = max(share * BAND, 3.0)
        children.append(draw_rect(piece.x, top + BAND - height, piece.width, height, "copied"))
    if span.copies and piece.first:
        middle = piece.x + min(piece.width / 2, 12.0)
        notch = f"M{middle - 4:.2f} {top - NOTCH:.2f}h8l-4 {NOTCH - 1:.2f}z"
        children.append(make_element("path", d=notch, class_="copied"))
        label = format_byte_count(span.copy_bytes)
        # Contrast with the copies' colour if they fill the foot of the block, else with the layout's colour.
        if can_fit(label, piece.width - 8, LABEL_FONT):
            inside = share * BAND >= LABEL_FONT + 5
            y = top + BAND - 5 if inside else top + BAND - max(share * BAND, 3.0) - 4
            children.append(draw_text(label, piece.x + 5, y, "map-on-copy" if inside else "map-on-layout"))
    return make_element("g", *children)


def _draw_brackets(pieces: list[_RowPiece], top: float, shared: int) -> Iterator[Markup]:
    """Draw module names over the blocks of a row, at the greatest depth at which most of them fit."""
    deepest = max(piece.span.module_path.count(".") + 1 for piece in pieces)
    groups = _group_by_module(pieces, shared, shared + 1)
    for depth in range(deepest, shared + 1, -1):
        deeper = _group_by_module(pieces, shared, depth)
        width = sum(right - left for _, left, right in deeper)
        fitting = (right - left for name, left, right in deeper if can_fit(name, right - left - 6, LABEL_FONT))
        if sum(fitting) / width >= READABLE_SHARE:
            groups = deeper
            break
    for name, left, right in groups:
        label = clip_text(name, right - left - 6, LABEL_FONT)
        if label:
            yield make_element(
                "path", d=f"M{left + 1:.2f} {top + LABEL_LINE - 3:.2f}H{right - 1:.2f}", class_="map-bracket"
            )
            yield draw_text(label, left + 2, top + LABEL_LINE - 7, "map-label")


def _group_by_module(pieces: list[_RowPiece], shared: int, depth: int) -> list[tuple[str, float, float]]:
    """Yield runs of blocks whose paths agree up to `depth`: name without the `shared` parts, left and right edge."""
    groups = []
    for name, run in groupby(pieces, key=lambda piece: ".".join(piece.span.module_path.split(".")[shared:depth])):
        members = list(run)
        groups.append((clean_line(name), members[0].x, members[-1].x + members[-1].width))
    return groups


def _count_shared_parts(paths: Sequence[str]) -> int:
    """Count the parts that all paths begin with, leaving at least one part of the shortest."""
    split = [path.split(".") for path in paths]
    shared = 0
    while all(len(parts) > shared + 1 and parts[shared] == split[0][shared] for parts in split):
        shared += 1
    return shared


def _describe_span(span: LayoutSpan) -> str:
    copied = (
        f"{format_count(span.copies, 'layout copy', 'layout copies')}, {format_byte_count(span.copy_bytes)} "
        f"({format_percent(100.0 * span.copy_bytes / span.bytes)})"
        if span.copies
        else "no layout copy"
    )
    where = clean_line(span.module_path) or "the model"
    ops = format_count(span.ops, "operator")
    return f"{where}: {describe_layout(span.layout)}, {ops}, {format_byte_count(span.bytes)} moved, {copied}"


def _describe_graph(graph: GraphSummary) -> str:
    """Describe the picture: the traffic in each layout, and the blocks that copy most."""
    total = sum(span.bytes for span in graph.spans)
    by_layout: dict[str, int] = {}
    for span in graph.spans:
        by_layout[span.layout] = by_layout.get(span.layout, 0) + span.bytes
    shares = ", ".join(
        f"{describe_layout(layout)} {format_percent(100.0 * size / total)}"
        for layout, size in sorted(by_layout.items(), key=lambda item: (-item[1], item[0]))
    )
    worst = sorted((s for s in graph.spans if s.copies), key=lambda s: (-s.copy_bytes, s.module_path))[:5]
    copies = "; ".join(f"{clean_line(s.module_path)} {format_byte_count(s.copy_bytes)}" for s in worst) or "none"
    return f"Traffic of {clean_line(graph.origin)} by layout: {shares}. Most layout copies: {copies}."
