"""Read the NVTX ranges around a kernel's launch, from an export made with `--nvtx`.

A cell has a number, of the thread or the range, and, in quotation marks, each range that was open, outermost first:
`58960  "<default domain>:forward:none:none:none:none:none:none"  "<default domain>:conv1:none:…"`. A range has its
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
    """The columns of ranges: first those that threads push and pop, then those that are started and stopped."""
    return tuple(
        index for mark in _COLUMNS for index, name in enumerate(header) if mark in name and name.endswith(":Msg")
    )


@functools.lru_cache(maxsize=4096)
def parse_range_names(cell: str) -> tuple[str, ...]:
    """Return the names of the ranges in a cell, outermost first; other text is left out."""
    names = []
    for text in _RANGE.findall(cell)[:_DEEPEST]:
        _, colon, rest = text.partition(":")
        fields = rest.rsplit(":", _FIELDS_BEHIND)
        if colon and len(fields) == _FIELDS_BEHIND + 1 and fields[0].strip():
            names.append(fields[0].strip())
    return tuple(names)
