"""The control groups (cgroup v2) that a process is in: what containers and schedulers limit it by."""

from __future__ import annotations

import contextlib
import os
from functools import cache
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")


@cache
def own_groups(cgroups: Path = CGROUPS, own: Path = OWN_CGROUP) -> tuple[Path, ...]:
    """The folders of this process's group and all above it, any of which may have limits; none where there are no
    groups. In a container its own group is the root of what it sees."""
    try:
        (path,) = (line.split(":", 2)[2] for line in own.read_text().splitlines() if line.startswith("0::"))
        group = Path(os.path.normpath(path.strip())).relative_to("/")
    except (OSError, ValueError):
        return ()
    return tuple(dict.fromkeys(cgroups / above for above in (group, *group.parents)))


def numbers_by_name(file: Path) -> dict[str, int]:
    """The lines `name number` of a file; those that it has."""
    found = {}
    with contextlib.suppress(OSError):
        for line in file.read_text().splitlines():
            name, _, number = line.partition(" ")
            if number.isdecimal():
                found[name] = int(number)
    return found


def number_in(file: Path) -> int | None:
    """The number that a file consists of; None for another text, such as "max", and where there is no file."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None
