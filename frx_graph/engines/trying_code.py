"""Which code of ours has a say in what a trial finds: what makes something of a graph, and what tries it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import frx_graph.trials
from frx_graph.compiler.code_fingerprint import code_hash


def trying_code_hash() -> str:
    """Sixteen hexadecimal digits, the same on all machines with the same of it."""
    digest = hashlib.sha256(code_hash().encode())
    for path in sorted(Path(frx_graph.trials.__path__[0]).glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
