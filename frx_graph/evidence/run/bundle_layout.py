"""File names in the bundle of a run, a folder `run-<id>` or a zip of it."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Final

METADATA: Final = PurePosixPath("metadata.json")
"""The command, time, place and ending of the run, and its missing parts."""
MANIFEST: Final = PurePosixPath("manifest.json")
"""The files, with sizes and checksums, and whether the data are limited."""
RUN_CONFIG: Final = PurePosixPath("run_config.yaml")
GPU_METRICS: Final = PurePosixPath("gpu_metrics.csv")
HOST_METRICS: Final = PurePosixPath("host_metrics.csv")
"""Processor and memory of the program's processes, for which `gpu_metrics.csv` has no columns."""
LOGS: Final = PurePosixPath("optional_logs.txt")
EVENTS: Final = PurePosixPath("raw/trace.jsonl")
SUMMARY: Final = PurePosixPath("derived/summary.json")
PROFILER: Final = PurePosixPath("profiler")
PROFILER_TRACE: Final = PROFILER / "profiler_trace.json"
