"""Processor time that a control group (cgroup v2) may use, as Kubernetes limits a container, and how long it waits.

Under a quota a process may run on every processor of its machine, only not all of the time.
"""

from __future__ import annotations

from pathlib import Path

from frx_graph.measure.machine.control_groups import CGROUPS, OWN_CGROUP, own_groups


def quota_processors(cgroups: Path = CGROUPS, own: Path = OWN_CGROUP) -> float | None:
    """How many processors' time this process's group, and all above it, leave it (`cpu.max`); None: no quota, or
    nobody tells."""
    quotas = (_quota(group / "cpu.max") for group in own_groups(cgroups, own))
    return min((quota for quota in quotas if quota is not None), default=None)


def waited_seconds(cgroups: Path = CGROUPS, own: Path = OWN_CGROUP) -> float | None:
    """How long so far something in this process's own group could have run and waited for a processor, of the time
    that anything in it had to do (`some` in `cpu.pressure`, which is the mean over processors:
    https://docs.kernel.org/accounting/psi.html). Waiting since the quota is used up is in it, too. None where the
    system does not tell."""
    try:
        group, *_ = own_groups(cgroups, own)
        lines = (line.split() for line in (group / "cpu.pressure").read_text().splitlines())
        (total,) = (part for kind, *parts in lines if kind == "some" for part in parts if part.startswith("total="))
        return int(total.removeprefix("total=")) / 1e6
    except (OSError, ValueError):
        return None


def _quota(file: Path) -> float | None:
    try:
        microseconds, period = file.read_text().split()
        return int(microseconds) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # "max" where there is none
        return None
