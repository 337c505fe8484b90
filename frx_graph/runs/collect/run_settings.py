"""Check the settings of `frx collect`, and derive the workload's environment."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from frx_graph.errors import OptionError
from frx_graph.evidence.run import bundle_layout
from frx_graph.runs.collect.run_metadata import Host
from frx_graph.support.plain_text import escape_surrogates

DEFAULT_NAME: Final = "frx-run"
DEFAULT_OUT: Final = Path("runs")
DEFAULT_ARTIFACTS: Final = Path("frx-job-run")
DEFAULT_INTERVAL_MS: Final = 1000
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_LONGEST_NAME: Final = 200
_LONGEST_CONFIG: Final = 1 << 20
"""Bytes."""


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The settings of a run.

    `artifacts` are folders that the workload's profiler may write to; None: the usual folder, which need not exist.
    `config` is a file that the user adds to `run_config.yaml`.
    """

    command: tuple[str, ...]
    run_id: str
    name: str = DEFAULT_NAME
    out: Path = DEFAULT_OUT
    artifacts: tuple[Path, ...] | None = None
    import_profiles: bool = True
    interval_ms: int = DEFAULT_INTERVAL_MS
    config: Path | None = None
    explain: bool = False
    zip: bool = True

    def __post_init__(self) -> None:
        """Raises `OptionError`."""
        if not self.command:
            raise OptionError("there is no program to run", "frx collect -- python train.py")
        if shutil.which(self.command[0]) is None:
            raise OptionError(f"{self.command[0]} is not a program that can be run", "the program comes after --")
        if any("\0" in word for word in self.command):
            raise OptionError("an argument of the program has a null character", "no program can be given one")
        # It is the name of a folder, and a variable.
        if _RUN_ID.fullmatch(self.run_id) is None:
            hint = "up to 100 letters, digits, dots, dashes and underscores, the first a letter or a digit"
            raise OptionError(f"--run-id {self.run_id!r} cannot be the name of a run", hint)
        if not self.name.strip() or not self.name.isprintable() or len(self.name) > _LONGEST_NAME:
            hint = f"one line of up to {_LONGEST_NAME} characters"
            raise OptionError(f"--name {self.name[:50]!r} is not a name", hint)

    @property
    def folder(self) -> Path:
        """The folder of the run, absolute."""
        return (self.out / self.run_id).absolute()

    @property
    def archive(self) -> Path:
        """The zip, beside the folder."""
        return self.folder.with_name(f"{self.run_id}.zip")

    @property
    def artifact_folders(self) -> tuple[Path, ...]:
        """Absolute, since the workload may change its working directory."""
        given = (DEFAULT_ARTIFACTS,) if self.artifacts is None else self.artifacts
        return tuple(folder.absolute() for folder in given)

    def build_environment(self, inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Return the variables of the workload."""
        return {
            **inherited,
            "FRX_RUN_ID": self.run_id,
            "FRX_JOB_NAME": self.name,
            **make_folder_variables(self.folder),
            "FRX_SAMPLE_INTERVAL_MS": str(self.interval_ms),
        }

    def format_config(self, host: Host) -> str:
        """Return `run_config.yaml`: the user's additions first, then the settings and the machine. Raises `OptionError`
        for an invalid --config."""
        ours: dict[str, Any] = {
            "collector": {
                "run_id": self.run_id,
                "job_name": self.name,
                "sample_interval_ms": self.interval_ms,
                "artifact_dirs": [str(folder) for folder in self.artifacts or (DEFAULT_ARTIFACTS,)],
                "profiler_import": self.import_profiles,
                "zip": self.zip,
            },
            "environment": host.model_dump(mode="json"),
        }
        try:
            merged = _merge_mappings(ours, self._read_config())
            return escape_surrogates(yaml.safe_dump(merged, sort_keys=False, allow_unicode=True))
        # Invalid dates raise ValueError.
        except (yaml.YAMLError, RecursionError, ValueError) as error:
            told = " ".join(str(error).split())
            raise OptionError(f"--config {self.config} cannot be read as YAML: {told}") from None

    def _read_config(self) -> Mapping[Any, Any]:
        if self.config is None:
            return {}
        # Opening a FIFO waits for a writer that may never come.
        if self.config.exists() and not self.config.is_file():
            raise OptionError(f"--config {self.config} is not a regular file")
        try:
            with self.config.open("rb") as file:
                text = file.read(_LONGEST_CONFIG + 1)
            if len(text) > _LONGEST_CONFIG:
                raise OptionError(f"--config {self.config} has more than {_LONGEST_CONFIG >> 20} MiB")
        except OSError as error:
            raise OptionError(f"--config {self.config} cannot be read: {error.strerror or error}") from None
        given = yaml.safe_load(text)
        if given is not None and not isinstance(given, dict):
            raise OptionError(f"--config {self.config} is not a mapping of names to values")
        return given or {}


def make_folder_variables(folder: Path) -> dict[str, str]:
    """Return the variables by which a workload writes its records to `folder`, which must be absolute."""
    return {
        "FRX_OUTPUT_DIR": str(folder),
        "FRX_RAW_TRACE_PATH": str(folder / bundle_layout.EVENTS),
        "FRX_DERIVED_SUMMARY_PATH": str(folder / bundle_layout.SUMMARY),
        "FRX_AUTO_PERSIST": "1",
    }


def make_run_id() -> str:
    """Return an identifier that no run has."""
    return f"run-{secrets.token_hex(6)}"


def _merge_mappings(ours: Mapping[Any, Any], given: Mapping[Any, Any]) -> dict[Any, Any]:
    both = {
        key: _merge_mappings(ours[key], value) if isinstance(value, dict) and isinstance(ours.get(key), dict) else value
        for key, value in given.items()
    }
    return {**ours, **both}
