"""Write a tune's runs and trials to its folder, and read them back to resume after a kill.

    tune-<id>/
      settings.json
      baseline/            config.yaml  benchmark_window.json  metrics.json  stdout.log  stderr.log  raw/trace.jsonl
      race/<candidate>/    the same, and the processes' files
      <candidate>/         the same
      final/               the same, for all changes together
      autopilot_report.json
      report.md

`metrics.json` is written last: an interrupted trial has none, and is measured again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError

from frx_graph.errors import EvidenceError, OptionError
from frx_graph.runs.tune.settings import TuneSettings
from frx_graph.runs.workload.workload import redact_secrets
from frx_graph.support.atomic_file import write_atomically
from frx_graph.trials.configuration_trial import ConfigurationTrial, Kind, RunSeen

BASELINE = "baseline"
FINAL = "final"
_SETTINGS = "settings.json"
_METRICS = "metrics.json"
_SEEN = TypeAdapter(RunSeen)
_TRIAL = TypeAdapter(ConfigurationTrial)


class _BaselineMetrics(BaseModel):
    seen: RunSeen


class _TrialMetrics(BaseModel):
    trial: ConfigurationTrial


_Metrics = TypeVar("_Metrics", _BaselineMetrics, _TrialMetrics)


class TuneFolder:
    """The files of a tune. Raises `OSError` if they cannot be written."""

    def __init__(self, path: Path, settings: TuneSettings) -> None:
        self.path = path
        self._settings = settings

    @property
    def name(self) -> str:
        """The tune's id."""
        return self.path.name

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the folder against other tunes while the block runs. Raises `OptionError` if another holds it. The lock
        ends with its process."""
        with (self.path / _SETTINGS).open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                hint = "wait for its end, or begin a new tune"
                raise OptionError(f"{self.path}: another frx tune is using it", hint) from None
            except OSError as error:
                # Some network file systems have no locks.
                if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                    raise
            yield

    def get_trial_folder(self, kind: Kind, candidate: str) -> Path:
        """Return the folder of a trial."""
        if kind is Kind.RACE:
            return self.path / "race" / candidate
        return self.path / (FINAL if kind is Kind.FINAL else candidate)

    def begin_trial(self, folder: Path, variables: Mapping[str, str], *, why: str | None = None) -> None:
        """Remove the files of an interrupted trial, and write the candidate's configuration. `why` is the reason if it
        is not run."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        settings = self._settings
        race = folder.parent.name == "race"
        config = {
            "name": settings.name,
            "command": list(redact_secrets(settings.command)),
            "environment": dict(variables),
            "tune": settings.model_dump(mode="json", exclude={"command", "name"}),
        }
        window = {
            "warmup_steps": settings.race_warmup_steps if race else settings.warmup_steps,
            "measurement_steps": settings.race_measure_steps if race else settings.measure_steps,
            "repeat_count": 1 if race else settings.repeat_count,
            "timeout_s": settings.time_budget_s,
        }
        (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
        (folder / "benchmark_window.json").write_text(json.dumps(window, indent=2) + "\n", encoding="utf-8")
        (folder / "stdout.log").touch()
        (folder / "stderr.log").write_text("" if why is None else f"frx: not run: {why}\n", encoding="utf-8")

    def read_baseline(self) -> RunSeen | None:
        """Read the baseline, if it was finished."""
        found = _read_figures(self.path / BASELINE / _METRICS, _BaselineMetrics)
        return None if found is None else found.seen

    def keep_baseline(self, seen: RunSeen) -> None:
        """Keep the finished baseline."""
        figures = {**_list_figures(seen), "seen": _SEEN.dump_python(seen, mode="json")}
        _write_figures(self.path / BASELINE / _METRICS, figures)

    def read_trial(self, kind: Kind, candidate: str) -> ConfigurationTrial | None:
        """Read a trial, if it was finished."""
        found = _read_figures(self.get_trial_folder(kind, candidate) / _METRICS, _TrialMetrics)
        return None if found is None else found.trial

    def keep_trial(self, trial: ConfigurationTrial) -> None:
        """Keep a finished trial."""
        figures = {
            "verdict": trial.fate.value,
            "reason": trial.reason,
            "gain": trial.gain.ratio - 1 if trial.gain else None,
            **(_list_figures(trial.seen) if trial.seen else {}),
            "trial": _TRIAL.dump_python(trial, mode="json"),
        }
        _write_figures(self.get_trial_folder(trial.kind, trial.configuration.id) / _METRICS, figures)


def make_tune_folder(out: Path, name: str, settings: TuneSettings) -> TuneFolder:
    """Make an empty folder. Raises `OptionError` if that fails."""
    path = out / name
    try:
        path.mkdir(parents=True)
        write_atomically(path / _SETTINGS, settings.model_dump_json(indent=2) + "\n")
    except OSError as error:
        raise OptionError(f"--out {out}: {error.strerror or error}", "name a folder that can be written") from error
    return TuneFolder(path, settings)


def open_tune_folder(path: Path, settings: TuneSettings) -> TuneFolder:
    """Return the folder at `path` to resume with the same arguments. Raises `OptionError` for others."""
    try:
        before = TuneSettings.model_validate_json((path / _SETTINGS).read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"--resume {path}: there is no {_SETTINGS} in it", "name the folder of a tune") from error
    except (ValidationError, UnicodeDecodeError) as error:
        raise OptionError(f"--resume {path}: its {_SETTINGS} cannot be read", "begin a new tune") from error
    for field in TuneSettings.model_fields:
        was, now = getattr(before, field), getattr(settings, field)
        if was != now:
            raise OptionError(f"--resume {path}: {field} was {was!r} and is {now!r}", "give the same arguments")
    return TuneFolder(path, settings)


def _list_figures(seen: RunSeen) -> dict[str, Any]:
    """Return the figures for people and other programs; None: unknown."""
    step = seen.seconds_per_step
    return {
        "exit_code": seen.exit_code,
        "ending": seen.ending,
        "steps": seen.steps,
        "steps_per_second": 1 / step if step else None,
        "samples_per_second": seen.samples_per_second,
        "step_ms": 1e3 * step if step else None,
        "final_loss": seen.losses[-1] if seen.losses else None,
        "peak_bytes": seen.peak_bytes,
        "memory_ratio": seen.memory_ratio,
        "gpu_util_pct": seen.device_busy_percent,
        "bottleneck": seen.bottleneck,
    }


def _write_figures(path: Path, figures: Mapping[str, Any]) -> None:
    write_atomically(path, json.dumps(figures, indent=2, allow_nan=False) + "\n")


def _read_figures(path: Path, model: type[_Metrics]) -> _Metrics | None:
    try:
        return model.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise EvidenceError(f"{path} cannot be read", "delete its folder: the trial is then made again") from error
