"""Read from the environment where this process records its events, and print each warning once."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from frx_graph.evidence.run.bundle_layout import EVENTS

OUTPUT_DIR: Final = "frx-job-run"
"""Folder of the artifacts that `frx collect` imports, unless `FRX_OUTPUT_DIR` names another."""
MAX_TRACE_BYTES: Final = 256 * 2**20
"""About 250,000 steps with four spans each, which are 1 KB a step."""
_OFF = frozenset({"0", "false", "no", "off"})

_SAID: set[str] = set()
_MOST_SAID = 100


@dataclass(frozen=True, slots=True)
class RecordingSettings:
    """The settings of a recording. `path` is the file that events are appended to; None: nothing is recorded. The file
    has all steps up to `max_bytes`, and beyond only some."""

    path: Path | None
    job_name: str | None = None
    max_bytes: int = MAX_TRACE_BYTES


def read_settings(environment: Mapping[str, str] = os.environ) -> RecordingSettings:
    """Return the settings in the environment."""
    job_name = environment.get("FRX_JOB_NAME") or None
    return RecordingSettings(_get_trace_path(environment), job_name, _read_max_bytes(environment))


def get_output_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of a run's artifacts: `FRX_OUTPUT_DIR`, or `frx-job-run`."""
    return Path(environment.get("FRX_OUTPUT_DIR") or OUTPUT_DIR)


def _get_trace_path(environment: Mapping[str, str]) -> Path | None:
    wanted = environment.get("FRX_AUTO_PERSIST", "").strip().lower()
    if wanted in _OFF:
        return None
    named = environment.get("FRX_RAW_TRACE_PATH")
    if not named and not wanted:
        return None
    # Made absolute now: programs change their directory.
    return Path(named).absolute() if named else (get_output_dir(environment) / EVENTS).absolute()


def _read_max_bytes(environment: Mapping[str, str]) -> int:
    given = environment.get("FRX_MAX_TRACE_BYTES", "").strip()
    if not given:
        return MAX_TRACE_BYTES
    if given.isascii() and given.isdigit() and len(given) < 19:
        return int(given)
    warn_once(f"FRX_MAX_TRACE_BYTES is not a number of bytes; using {MAX_TRACE_BYTES}")
    return MAX_TRACE_BYTES


def warn_once(message: str) -> None:
    """Print `message` to standard error, once. Never raises."""
    if message in _SAID or len(_SAID) >= _MOST_SAID:
        return
    _SAID.add(message)
    # Not `warnings`: some programs turn them into errors, and this is also called from another thread.
    with contextlib.suppress(Exception):
        print(f"frx: {message}", file=sys.stderr, flush=True)
