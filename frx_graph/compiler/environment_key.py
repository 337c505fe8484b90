"""The environment that a decision holds in: where it was measured, and by which code of ours it is made."""

from __future__ import annotations

import hashlib

from frx_graph.compiler.code_fingerprint import code_hash
from frx_graph.trials.environment_record import TrialSetup


def environment_key(setup: TrialSetup) -> str:
    """Sixteen hexadecimal digits, the same in every process of this setup that runs this code."""
    return hashlib.sha256(f"{setup.fingerprint} {code_hash()}".encode()).hexdigest()[:16]
