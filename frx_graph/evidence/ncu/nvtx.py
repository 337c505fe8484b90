"""The NVTX ranges in which a kernel was launched, as an export made with `--nvtx` has them.

A cell is a number, of the thread or the range, and, in quotation marks, each range that was open, the outermost first:
`58960  "<default domain>:forward:none:none:none:none:none:none"  "<default domain>:conv1:none:…"`. A range is its
domain, its name, and six fields on payload, colour and message.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

_COLUMNS = (":Push/Pop_Range:", ":Start/Stop_Range:")
_RANGE = re.compile(r'"([^"]*)"')
_FIELDS_BEHIND = 6
_DEEPEST = 256


def find_nvtx_columns(header: Sequence[str]) -> tuple[int, ...]:
    """The columns of ranges: those that threads push and pop first, then those that are started and stopped."""
    return tuple(
        index for mark in _COLUMNS for index, name in enumerate(header) if mark in name and name.endswith(":Msg")
    )


@functools.lru_cache(maxsize=4096)
def parse_range_names(cell: str) -> tuple[str, ...]:
    """The names of the ranges in a cell, the outermost first; what is no range is left out."""
    names = []
    for text in _RANGE.findall(cell)[:_DEEPEST]:
        _, colon, rest = text.partition(":")
        fields = rest.rsplit(":", _FIELDS_BEHIND)
        if colon and len(fields) == _FIELDS_BEHIND + 1 and fields[0].strip():
            names.append(fields[0].strip())
    return tuple(names)
