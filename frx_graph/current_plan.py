"""The plan that graphs are rewritten by in this process."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

import frx_graph.passes
import frx_graph.rules
from frx_graph.evidence.measurement_environment import measurement_environment
from frx_graph.passes.rewrites import REWRITES
from frx_graph.plan import Plan


def current_plan(policy: str) -> Plan:
    """What `policy` ("all", "solved") stands for in this process; what is made of a graph depends on nothing else."""
    return Plan(
        policy=policy,
        rewrites=tuple(rewrite.name for rewrite in REWRITES),
        code=code_hash(),
        machine=tuple(measurement_environment(device).fingerprint for device in ("cpu", "cuda")),
    )


@functools.cache
def code_hash() -> str:
    """Changes with any change of the package: a graph compiled by other code of ours is not the same."""
    digest = hashlib.sha256()
    for package in (frx_graph, frx_graph.passes, frx_graph.rules):
        for path in sorted(Path(package.__path__[0]).glob("**/*")):
            if path.suffix in (".py", ".yaml"):
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
