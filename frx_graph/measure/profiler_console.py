"""What the profiler's library announces on standard error, which nobody asked for."""

from __future__ import annotations

import re

_KINETO_CHATTER = re.compile(r"^(USDT|STAGE|INFO|WARNING|ERROR):\d{4}-\d\d-\d\d .*\.cpp:\d+\] .*\n?$")


def not_kineto(line: str) -> str:
    """`line`, or nothing where Kineto wrote it."""
    return "" if _KINETO_CHATTER.match(line) else line
