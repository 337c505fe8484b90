"""Read the control groups (cgroup v2) of a process, by which containers and schedulers limit it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import psutil

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")


@cache
def find_own_groups(cgroups: Path = CGROUPS, own: Path = OWN_CGROUP) -> tuple[Path, ...]:
    """Return the folders of this process's group and all above it; none without control groups. In a container its own
    group is the root of the visible hierarchy."""
    try:
        (path,) = (line.split(":", 2)[2] for line in own.read_text().splitlines() if line.startswith("0::"))
        group = Path(os.path.normpath(path.strip())).relative_to("/")
    except (OSError, ValueError):
        return ()
    return tuple(dict.fromkeys(cgroups / above for above in (group, *group.parents)))


def read_numbers(file: Path) -> dict[str, int]:
    """Return the lines `name number` of a file as a mapping."""
    found = {}
    with contextlib.suppress(OSError):
        for line in file.read_text().splitlines():
            name, _, number = line.partition(" ")
            if number.isdecimal():
                found[name] = int(number)
    return found


def read_number(file: Path) -> int | None:
    """Return the number in a file; None for other text, such as "max", and without a file."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def get_available_memory(cgroups: Path = CGROUPS, own: Path = OWN_CGROUP) -> int | None:
    """Return the bytes that can be allocated now without swapping or being killed; None if unknown.

    In a control group (cgroup v2) that is `memory.max` minus the memory in use, where file pages not read lately
    (`inactive_file`) count as free.
    """
    found = list(_read_group_memory(cgroups, own))
    with contextlib.suppress(OSError, psutil.Error):
        found.append(psutil.virtual_memory().available)
    return min(found, default=None)


def _read_group_memory(cgroups: Path, own: Path) -> Iterator[int]:
    for group in find_own_groups(cgroups, own):
        limit, used = read_number(group / "memory.max"), read_number(group / "memory.current")
        if limit is not None and used is not None:
            reclaimed = read_numbers(group / "memory.stat").get("inactive_file", 0)
            yield max(0, limit - max(0, used - reclaimed))


def read_quota_processors(cgroups: Path = CGROUPS, own: Path = OWN_CGROUP) -> float | None:
    """Return how many processors' time the own control groups allow (`cpu.max`); None without a known quota."""
    quotas = (_read_quota(group / "cpu.max") for group in find_own_groups(cgroups, own))
    return min((quota for quota in quotas if quota is not None), default=None)


def read_waited_seconds(cgroups: Path = CGROUPS, own: Path = OWN_CGROUP) -> float | None:
    """Return the seconds for which any task of this process's own group has waited for a processor (`some` in
    `cpu.pressure`, the mean over processors: https://docs.kernel.org/accounting/psi.html). They include waiting for an
    exhausted quota. None if unknown."""
    try:
        group, *_ = find_own_groups(cgroups, own)
        lines = (line.split() for line in (group / "cpu.pressure").read_text().splitlines())
        (total,) = (part for kind, *parts in lines if kind == "some" for part in parts if part.startswith("total="))
        return int(total.removeprefix("total=")) / 1e6
    except (OSError, ValueError):
        return None


def _read_quota(file: Path) -> float | None:
    try:
        microseconds, period = file.read_text().split()
        return int(microseconds) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # "max" where there is none
        return None
