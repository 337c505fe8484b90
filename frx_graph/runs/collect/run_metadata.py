"""Define a bundle's `metadata.json`, about the run, and `manifest.json`, about its files."""

from __future__ import annotations

import enum
import importlib.metadata
import os
import platform
from datetime import datetime
from typing import Literal

import psutil
from pydantic import BaseModel, ConfigDict, Field

from frx_graph.measure.machine.control_groups import read_quota_processors
from frx_graph.measure.machine.device_state import list_gpu_names
from frx_graph.version import __version__


class State(enum.StrEnum):
    """The progress of a run. A killed collector leaves the last state."""

    RUNNING = "running"
    ENDED = "ended"
    """The workload has ended; files derived from its output may be missing."""
    COMPLETE = "complete"


class _FrozenModel(BaseModel):
    model_config = ConfigDict(frozen=True)


class Host(_FrozenModel):
    """The machine of a run; None: unknown. Host name, user and environment are left out."""

    platform: str
    python: str
    torch: str | None
    processors: int | None
    memory_bytes: int
    gpus: tuple[str, ...]


class Artifact(_FrozenModel):
    """A file of the bundle, by its path in it. `imported_from` is the source path of a copied file."""

    path: str
    bytes: int
    imported_from: str | None = None


class RunMetadata(_FrozenModel):
    """`metadata.json`. Times are in UTC. Of `exit_code` and `signal` one is null once the run has ended."""

    schema_: Literal["frx_run_metadata_v1"] = Field(default="frx_run_metadata_v1", alias="schema")
    frx_version: str = __version__
    run_id: str
    job_name: str
    command: tuple[str, ...]
    """The command line, without the values of options whose names suggest secrets."""
    state: State
    started_at: datetime
    ended_at: datetime | None = None
    duration_seconds: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    host: Host
    artifacts: tuple[Artifact, ...] = ()
    warnings: tuple[str, ...] = ()


class ManifestFile(_FrozenModel):
    """A file by its path in the bundle."""

    path: str
    bytes: int
    sha256: str
    imported: bool


class Manifest(_FrozenModel):
    """`manifest.json`: all files but itself. `limited_data`: no events were written, so steps come from the profile
    alone, which is less certain. `missing` lists the data that the run lacks, each with the reason."""

    schema_: Literal["frx_run_manifest_v1"] = Field(default="frx_run_manifest_v1", alias="schema")
    run_id: str
    limited_data: bool
    missing: tuple[str, ...]
    files: tuple[ManifestFile, ...]


def _count_processors() -> int:
    """Return how many processors this process may use: fewer than there are if it is pinned, or in a container."""
    allowed = len(os.sched_getaffinity(0))
    quota = read_quota_processors()
    return allowed if quota is None else max(1, min(allowed, round(quota)))


def describe_host() -> Host:
    """Describe this machine."""
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch = None
    return Host(
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        torch=torch,
        processors=_count_processors(),
        memory_bytes=psutil.virtual_memory().total,
        gpus=list_gpu_names(),
    )
