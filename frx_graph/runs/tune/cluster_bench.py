"""Run and time configurations on the nodes of a cluster, as `TuneBench` does on this machine.

A node sends its results and files back, and they are written to the tune's folder. The baseline's run identifies the
kind of node. Candidates run only on nodes of that kind, so the whole tune measures one environment. Both arms of a
trial run on one node, which runs nothing else.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from frx_graph.engines.engine import Engine, JobResult, NowhereError, Placement, Progress
from frx_graph.errors import FrxError, TrialError
from frx_graph.runs.tune.bench import TuneBench, Variables
from frx_graph.runs.tune.examination import find_bottleneck
from frx_graph.runs.tune.settings import TuneSettings
from frx_graph.runs.tune.tune_folder import BASELINE, TuneFolder
from frx_graph.runs.tune.workload_facts import WorkloadFacts
from frx_graph.support.atomic_file import write_atomically
from frx_graph.trials.configuration_trial import Configuration, ConfigurationTrial, Fate, Kind, RunSeen

EngineOn = Callable[[str | None], Engine]
"""An engine whose nodes have the environment of this fingerprint; None: any."""
_PLACE, _MACHINE_FILE, _LAST = "place.json", "machine.json", "metrics.json"
_TOLD = ("FRX_", "GLIBC_TUNABLES", "LD_PRELOAD", "MALLOC_", "PYTORCH_")
"""Beginnings of the variables that can exclude candidates."""
_LARGEST_BYTES = 16 * 2**20
"""Size limit of a file that is sent back; a larger one stays on its node, and is removed with the attempt."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A node. `environment` identifies its kind; candidates are derived from the other fields."""

    environment: str
    one_at_a_time: bool
    """True if its memory holds the program once only."""
    facts: WorkloadFacts


_MACHINE = TypeAdapter(Machine)


@dataclass(frozen=True, slots=True)
class NodeResult:
    """The result of a node: the files of the trial's folder by name, and the findings, or the error of the
    baseline."""

    found: ConfigurationTrial | RunSeen | TrialError
    files: tuple[tuple[str, bytes], ...]
    machine: Machine | None


@dataclass(frozen=True, slots=True)
class TuneJob:
    """A whole run of the program as it is, or a race or trial of a candidate: a `Job`."""

    settings: TuneSettings
    place: str
    """The tune's folder on the machine that started it; the last part is its id."""
    kind: Kind | None = None
    """None: the baseline."""
    candidate: Configuration | None = None
    against: Variables = ()
    baseline: RunSeen | None = None
    candidates: int = 1
    one_at_a_time: bool = False

    @property
    def label(self) -> str:
        """The name of the job."""
        return BASELINE if self.candidate is None else f"{self.kind} {self.candidate.label}"

    def __call__(self, progress: Progress) -> NodeResult:
        """Run the job in a temporary folder."""
        with tempfile.TemporaryDirectory(prefix="frx-tune-") as place:
            folder = TuneFolder(Path(place) / Path(self.place).name, self.settings)
            folder.path.mkdir()
            bench = TuneBench(self.settings, folder, diagnose=find_bottleneck, progress=progress)
            bench.one_at_a_time |= self.one_at_a_time
            if self.candidate is None or self.kind is None:
                try:
                    seen = bench.run_baseline()
                except TrialError as error:
                    hint = error.hint.replace(str(folder.path), self.place)
                    return NodeResult(TrialError(error.message, hint), _read_files(folder.path / BASELINE), None)
                # Where the program ran: only a node that has torch knows its own settings.
                from frx_graph.engines.attempt_process import hash_node_environment

                machine = Machine(hash_node_environment(), bench.one_at_a_time, bench.gather_facts(seen))
                return NodeResult(seen, _read_files(folder.path / BASELINE), machine)
            assert self.baseline is not None
            (trial,) = bench.run_trials(self.kind, (self.candidate,), self.against, self.baseline, self.candidates)
            return NodeResult(trial, _read_files(folder.get_trial_folder(self.kind, self.candidate.id)), None)


class ClusterBench:
    """A `Bench` of a cluster's nodes. Finished trials are read from the folder and not measured again."""

    def __init__(
        self, settings: TuneSettings, folder: TuneFolder, engine: EngineOn, *, progress: Progress = lambda _: None
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._engine = engine
        self._progress = progress
        self._here = TuneBench(settings, folder)
        self._machine: Machine | None = None
        self._machine_file = folder.path / BASELINE / _MACHINE_FILE

    def run_baseline(self) -> RunSeen:
        """Run the program as it is on the first free node. Raises `TrialError` if nothing can be measured."""
        kept = self._folder.read_baseline()
        with contextlib.suppress(OSError, ValidationError):
            self._machine = _MACHINE.validate_json(self._machine_file.read_bytes())
        if kept is not None and self._machine is not None:
            return kept
        (finished,) = self._run_jobs(None, [TuneJob(self._settings, str(self._folder.path))])
        if isinstance(finished.result, FrxError):
            raise finished.result
        brought = finished.result
        self._keep(BASELINE, brought.files, finished.placed)
        if isinstance(brought.found, TrialError):
            raise brought.found
        self._machine = brought.machine
        assert brought.machine is not None
        assert isinstance(brought.found, RunSeen)
        # Others may hold secrets.
        facts = brought.machine.facts
        told = {name: value for name, value in facts.environment.items() if name.startswith(_TOLD)}
        bare = replace(brought.machine, facts=replace(facts, environment=told))
        write_atomically(self._machine_file, _MACHINE.dump_json(bare, indent=2).decode() + "\n")
        return brought.found

    def gather_facts(self, seen: RunSeen) -> WorkloadFacts:
        """Return the facts of the nodes that candidates run on."""
        assert self._machine is not None
        return replace(self._machine.facts, seen=seen)

    def record_refusal(
        self, kind: Kind, candidate: Configuration, against: Variables, reason: str
    ) -> ConfigurationTrial:
        """Record a candidate that is not run, which has a folder too."""
        return self._here.record_refusal(kind, candidate, against, reason)

    def run_trials(
        self, kind: Kind, candidates: Iterable[Configuration], against: Variables, baseline: RunSeen, number: int
    ) -> Iterator[ConfigurationTrial]:
        """Yield races, or whole trials, beside each other, as they finish."""
        assert self._machine is not None
        begun = []
        for candidate in candidates:
            if (before := self._here.find_finished(kind, candidate, against)) is not None:
                yield before
            else:
                begun.append(candidate)
        if not begun:
            return
        place, once = str(self._folder.path), self._machine.one_at_a_time
        jobs = [TuneJob(self._settings, place, kind, candidate, against, baseline, number, once) for candidate in begun]
        for finished in self._run_jobs(self._machine.environment, jobs):
            candidate = begun[finished.number]
            folder = self._folder.get_trial_folder(kind, candidate.id)
            if isinstance(finished.result, FrxError):
                if finished.placed is not None:
                    raise finished.result
                # It is not kept as finished, so that a resumed tune tries it again.
                self._folder.begin_trial(folder, dict(against) | dict(candidate.variables), why=str(finished.result))
                yield ConfigurationTrial(kind, candidate, against, Fate.INCONCLUSIVE, str(finished.result))
                continue
            self._keep(str(folder.relative_to(self._folder.path)), finished.result.files, finished.placed)
            assert isinstance(finished.result.found, ConfigurationTrial)
            yield finished.result.found

    def _run_jobs(self, environment: str | None, jobs: Sequence[TuneJob]) -> Iterator[JobResult[NodeResult]]:
        """Raises `NowhereError` if no node is left to continue on: the remaining trials are then not judged."""
        with contextlib.closing(self._engine(environment).run(jobs, self._progress)) as finished:
            for one in finished:
                if isinstance(one.result, NowhereError):
                    again = f"--resume {self._folder.path} continues when there is one"
                    hint = "; ".join(filter(None, (one.result.hint, again)))
                    raise NowhereError(one.result.message, hint)
                yield one

    def _keep(self, name: str, files: Sequence[tuple[str, bytes]], placed: Placement | None) -> None:
        """Write the files of a trial; the last one marks it finished."""
        place = self._folder.path / name
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        if placed is not None:
            write_atomically(place / _PLACE, json.dumps(asdict(placed), indent=2) + "\n")
        for path, content in sorted(files, key=lambda file: file[0] == _LAST):
            target = (place / path).resolve()
            if target.is_relative_to(place.resolve()):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)


def _read_files(folder: Path) -> tuple[tuple[str, bytes], ...]:
    return tuple(
        (str(path.relative_to(folder)), path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and path.stat().st_size <= _LARGEST_BYTES
    )
