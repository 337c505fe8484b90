"""Read `[tool.frx]` in pyproject.toml: default options of `frx advise`, the ledger, and the trial policy.

[tool.frx]
targets = ["model.py:build"]
ignore = ["FRX005"]
train = true
baseline = "frx-baseline.json"
ledger = "decisions.sqlite3"

[tool.frx.policy]
minimum_speedup = 0.05
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from frx_graph.errors import OptionError, suggest_name
from frx_graph.reports.advice.terminal import Format
from frx_graph.support.plain_text import clean_line
from frx_graph.trials.policy import TrialPolicy, parse_policy

PYPROJECT = "pyproject.toml"


class AdviseConfig(BaseModel):
    """The options of `frx advise`, by the names that they have in the file, and the ledger. None: the default."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    targets: tuple[str, ...] = ()
    """Files and folders are relative to the file there, and to the current folder here."""
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    inner: str | None = None
    device: str | None = None
    gpu: str | None = Field(default=None, alias="for")
    dtype: str | None = None
    train: bool = Field(default=False, strict=True)
    observe: bool = Field(default=False, strict=True)
    measure: bool = Field(default=True, strict=True)
    format: Format | None = None
    top: int | None = Field(default=None, ge=1, strict=True)
    baseline: Path | None = None
    """Relative to the file there, and absolute here."""
    exit_zero: bool = Field(default=False, strict=True)
    ledger: str | None = None
    """A SQLAlchemy URL, or the path of a file, which is absolute here."""
    policy: dict[str, Any] | None = None
    """The table `[tool.frx.policy]`, unchecked."""


def read_advise_config(start: Path) -> AdviseConfig:
    """Return the options in the nearest pyproject.toml at or above `start`; the defaults without one. Raises
    `OptionError` for invalid TOML, an unknown key or a wrong value."""
    file = find_pyproject(start)
    if file is None:
        return AdviseConfig()
    name = clean_line(str(file))
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise OptionError(f"{name} cannot be read: {clean_line(str(error))}") from error
    tool = document.get("tool")
    table = tool.get("frx", {}) if isinstance(tool, dict) else {}
    if not isinstance(table, dict):
        raise OptionError(f"{name}: tool.frx is not a table", "write it as [tool.frx]")
    known = [field.alias or name for name, field in AdviseConfig.model_fields.items()]
    for key in table:
        if key not in known:
            hint = suggest_name(key, known, "known keys")
            raise OptionError(f"{name}: unknown key {clean_line(key, 60)!r} in [tool.frx]", hint)
    try:
        config = AdviseConfig.model_validate(table)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise OptionError(f"{name}: [tool.frx] {where}: {clean_line(first['msg'])}") from error
    if config.gpu is not None and config.device is not None:
        raise OptionError(f"{name}: [tool.frx] for and device name two places", "leave out one of them")
    # In the file, paths are relative to its folder.
    paths: dict[str, Any] = {"targets": tuple(_place_target(target, file.parent) for target in config.targets)}
    if config.baseline is not None:
        paths["baseline"] = file.parent / config.baseline
    if config.ledger and "://" not in config.ledger and not config.ledger.startswith("~"):
        paths["ledger"] = str(file.parent / config.ledger)
    return config.model_copy(update=paths)


def _place_target(target: str, folder: Path) -> str:
    """Return a target with its file or folder relative to the current folder; a module stays as it is."""
    location, colon, name = target.rpartition(":")
    place = folder / (location if location.endswith(".py") else target)
    if not location.endswith(".py") and not place.is_dir():
        return target
    return os.path.relpath(place) + (f"{colon}{name}" if location.endswith(".py") else "")


def read_policy_table(config: AdviseConfig) -> TrialPolicy:
    """Return the policy of trials. Raises `PolicyError`."""
    return parse_policy(config.policy or {}, "[tool.frx.policy]")


def find_pyproject(start: Path) -> Path | None:
    """Return the nearest pyproject.toml in `start` or a folder above it."""
    folder = start.absolute()
    return next((file for parent in (folder, *folder.parents) if (file := parent / PYPROJECT).is_file()), None)
