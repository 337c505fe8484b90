"""Hide findings at source lines with the comment `# frx: ignore[FRX002]`.

The comment is on the finding's own line, or alone on the line above it. Without codes it covers every rule.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from frx_graph.advice import Advice
from frx_graph.records import Finding
from frx_graph.reports.advice.selection import hide_findings

SourceLines = Callable[[str], Sequence[str]]
"""Maps a path to the file's lines, empty if it is not readable Python source."""

MAX_SOURCE_BYTES = 20_000_000
"""Bytes of the largest file that is read. Call sites in a trace may name any file; larger ones are generated code
without such comments."""

_COMMENT = re.compile(r"#\s*frx:\s*ignore\b(?:\s*\[(?P<codes>[^\]#]*)\])?", re.IGNORECASE)


def apply_suppressions(advice: Advice, source_lines: SourceLines | None = None) -> Advice:
    """Return the advice without the findings that a comment at their call site suppresses."""
    read = source_lines or read_source
    hidden = [index for index, finding in enumerate(advice.findings) if _is_suppressed(finding, read)]
    return hide_findings(advice, hidden, "suppressed by a `# frx: ignore` comment")


def read_source(file: str) -> Sequence[str]:
    """Return the lines of a regular file of moderate size, or of a notebook cell; never of a device, pipe or
    directory."""
    if file in linecache.cache and not Path(file).exists():
        return linecache.getlines(file)
    try:
        path = Path(file)
        if not path.is_file() or path.stat().st_size > MAX_SOURCE_BYTES:
            return []
    except OSError:
        return []
    linecache.checkcache(file)
    return linecache.getlines(file)


def _is_suppressed(finding: Finding, read: SourceLines) -> bool:
    line = finding.site.line
    source = read(finding.site.file) if line > 0 else []
    if not 0 < line <= len(source):
        return False
    if _covers_rule(source[line - 1], finding.rule):
        return True
    above = source[line - 2].strip() if line > 1 else ""
    return above.startswith("#") and _covers_rule(above, finding.rule)


def _covers_rule(line: str, rule: str) -> bool:
    found = [comment["codes"] for comment in _COMMENT.finditer(line)]
    return any(codes is None or rule in (code.strip().upper() for code in codes.split(",")) for codes in found)
