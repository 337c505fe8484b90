"""Which of our own code has a say in what is made of a graph. Imports nothing of torch."""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path

import frx_graph.passes
import frx_graph.rules

_OF_FILES = {"analyze", "analyzers", "cuda", "gpus", "ncu", "ptx", "trace"}
_OF_RUNS = {"callbacks", "fleet", "run", "runs", "service", "tracking"}
_OF_WORDS = {"cli", "doctor", "recommendations", "reports"}
_NOT_COMPILING = _OF_FILES | _OF_RUNS | _OF_WORDS
"""Folders of what is said about programs, files of evidence and runs, which makes nothing of a graph: what is new in
them must not undo what trials have decided, nor be read at every start. In any other folder it may."""


@functools.cache
def code_hash() -> str:
    """Changes with any change of what is in `compiling_code`: a graph compiled by other code of ours is not the
    same."""
    digest = hashlib.sha256()
    for path in compiling_code():
        digest.update(Path(path).read_bytes())
    return digest.hexdigest()[:16]


def compiling_code() -> list[str]:
    """The files of the package, in order, that have a say in what is made of a graph."""
    found: list[str] = []
    for package in (frx_graph, frx_graph.passes, frx_graph.rules):
        for folder, folders, files in os.walk(package.__path__[0]):
            folders[:] = [name for name in folders if name not in _NOT_COMPILING]
            found += [f"{folder}{os.sep}{name}" for name in files if name.endswith((".py", ".yaml"))]
    return sorted(found)
