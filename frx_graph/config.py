"""`[tool.frx]` in pyproject.toml: what a project always passes to `frx advise`, and where its ledger is.

[tool.frx]
ignore = ["FRX005"]
train = true
baseline = "frx-baseline.json"
ledger = "decisions.sqlite3"

[tool.frx.policy]
minimum_speedup = 0.05
"""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from frx_graph.errors import OptionError
from frx_graph.reports.advice.report_format import Format
from frx_graph.reports.render.plain_text import one_line
from frx_graph.trials.policy import TrialPolicy, policy_from_mapping

PYPROJECT = "pyproject.toml"


class AdviseConfig(BaseModel):
    """The options of `frx advise`, by the names that they have in the file, and the ledger. None: the default."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    inner: str | None = None
    device: str | None = None
    dtype: str | None = None
    train: bool = Field(default=False, strict=True)
    observe: bool = Field(default=False, strict=True)
    measure: bool = Field(default=True, strict=True)
    format: Format | None = None
    top: int | None = Field(default=None, ge=1, strict=True)
    baseline: Path | None = None
    """Absolute once it is read: the file gives it relative to itself."""
    exit_zero: bool = Field(default=False, strict=True)
    ledger: str | None = None
    """A SQLAlchemy URL, or the path of a file, which is absolute once it is read."""
    policy: dict[str, Any] | None = None
    """Content of `[tool.frx.policy]`, unchecked."""


def advise_config(start: Path) -> AdviseConfig:
    """The configuration of the nearest pyproject.toml at or above `start`; all defaults where there is none.

    Raises OptionError, with the file's name, for one that is not TOML, for an unknown key and for a wrong value.
    """
    file = find_pyproject(start)
    if file is None:
        return AdviseConfig()
    name = one_line(str(file))
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise OptionError(f"{name} cannot be read: {one_line(str(error))}") from error
    table = _table(document, name)
    for key in table:
        if key not in AdviseConfig.model_fields:
            near = difflib.get_close_matches(key, AdviseConfig.model_fields, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(AdviseConfig.model_fields)}"
            raise OptionError(f"{name}: unknown key {one_line(key, 60)!r} in [tool.frx]", hint)
    try:
        config = AdviseConfig.model_validate(table)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise OptionError(f"{name}: [tool.frx] {where}: {one_line(first['msg'])}") from error
    return _absolute(config, file.parent)


def policy_of(config: AdviseConfig) -> TrialPolicy:
    """Return the policy of trials. Raises `PolicyError`."""
    return policy_from_mapping(config.policy or {}, "[tool.frx.policy]")


def find_pyproject(start: Path) -> Path | None:
    """The nearest pyproject.toml in `start` or a folder above it."""
    folder = start.absolute()
    return next((file for parent in (folder, *folder.parents) if (file := parent / PYPROJECT).is_file()), None)


def _absolute(config: AdviseConfig, folder: Path) -> AdviseConfig:
    """The configuration with its paths, which are given relative to the file, as they are in any folder."""
    paths: dict[str, Path | str] = {}
    if config.baseline is not None:
        paths["baseline"] = folder / config.baseline
    if config.ledger and "://" not in config.ledger and not config.ledger.startswith("~"):
        paths["ledger"] = str(folder / config.ledger)
    return config.model_copy(update=paths)


def _table(document: dict[str, Any], name: str) -> dict[str, Any]:
    tool = document.get("tool", {})
    table = tool.get("frx", {}) if isinstance(tool, dict) else {}
    if not isinstance(table, dict):
        raise OptionError(f"{name}: tool.frx is not a table", "write it as [tool.frx]")
    return table
