"""How much memory this process can have: what the machine has left, or what its control groups let it use."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psutil

from frx_graph.measure.machine.control_groups import CGROUPS, OWN_CGROUP, number_in, numbers_by_name, own_groups


def available_memory(cgroups: Path = CGROUPS, own: Path = OWN_CGROUP) -> int | None:
    """Bytes that can be had now without swapping and without being killed; None where the system does not tell.

    Of a control group (cgroup v2) that is its `memory.max` without what is in use, of which pages of files that nobody
    has lately read (`inactive_file`) are given up before anything is killed.
    """
    found = list(_left_in_groups(cgroups, own))
    with contextlib.suppress(OSError, psutil.Error):
        found.append(psutil.virtual_memory().available)
    return min(found, default=None)


def _left_in_groups(cgroups: Path, own: Path) -> Iterator[int]:
    for group in own_groups(cgroups, own):
        limit, used = number_in(group / "memory.max"), number_in(group / "memory.current")
        if limit is not None and used is not None:
            reclaimed = numbers_by_name(group / "memory.stat").get("inactive_file", 0)
            yield max(0, limit - max(0, used - reclaimed))
