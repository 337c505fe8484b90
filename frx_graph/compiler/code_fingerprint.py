"""Hash the code of this package that decides how graphs are compiled, without importing torch."""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import frx_graph.passes
import frx_graph.rules

if TYPE_CHECKING:
    from frx_graph.trials.environment_record import TrialSetup

_OF_FILES = {"analyze", "analyzers", "cuda", "gpus", "ncu", "ptx", "trace"}
_OF_RUNS = {"callbacks", "fleet", "run", "runs", "service", "tracking"}
_OF_WORDS = {"cli", "doctor", "fix", "recommendations", "reports"}
_NOT_COMPILING = _OF_FILES | _OF_RUNS | _OF_WORDS
"""Folders whose code changes no graph. A change there must not undo decisions of trials, and reading them would slow
every start."""


@functools.cache
def compute_code_hash() -> str:
    """Return a hash of the files that `list_compiling_files` lists: other code may compile a graph differently."""
    digest = hashlib.sha256()
    for path in list_compiling_files():
        digest.update(Path(path).read_bytes())
    return digest.hexdigest()[:16]


def list_compiling_files() -> list[str]:
    """Return the files of the package, sorted, that decide how graphs are compiled."""
    found: list[str] = []
    for package in (frx_graph, frx_graph.passes, frx_graph.rules):
        for folder, folders, files in os.walk(package.__path__[0]):
            folders[:] = [name for name in folders if name not in _NOT_COMPILING]
            found += [f"{folder}{os.sep}{name}" for name in files if name.endswith((".py", ".yaml"))]
    return sorted(found)


def compute_environment_key(setup: TrialSetup) -> str:
    """Return a hash of the setup that a decision was measured in and of this code: sixteen hexadecimal digits."""
    return hashlib.sha256(f"{setup.fingerprint} {compute_code_hash()}".encode()).hexdigest()[:16]
