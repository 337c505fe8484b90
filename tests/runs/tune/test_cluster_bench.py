"""What a tune keeps of what nodes of a cluster have sent: on an engine that does what it is told, without a cluster."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from frx_graph.engines.engine import JobResult, NowhereError, Placement
from frx_graph.errors import FrxError, TrialError
from frx_graph.runs.tune.cluster_bench import ClusterBench, Machine, NodeResult, TuneJob
from frx_graph.runs.tune.settings import TuneSettings
from frx_graph.runs.tune.tune_folder import TuneFolder, make_tune_folder, open_tune_folder
from frx_graph.runs.tune.workload_facts import WorkloadFacts
from frx_graph.trials.configuration_trial import Configuration, ConfigurationTrial, Fate, Kind, RunSeen, Tier

SETTINGS = TuneSettings(command=("python", "train.py"), candidates=((("A", "1"),),))
SEEN = RunSeen(
    exit_code=None, ending="it ends", in_time=True, steps=26, step_seconds=(0.01,) * 20, samples=None, batch_size=None,
    losses=(), outputs=(), workers=0, batch_layouts=1, peak_bytes=1, memory_ratio=0.1, device_busy_percent=None,
    bottleneck=None,
)  # fmt: skip
ONE, OTHER = (Configuration(f"a{n}", f"custom:A={n}", "custom", Tier.SAFE, (("A", str(n)),)) for n in (1, 2))
FACTS = WorkloadFacts(
    processors=4,
    gpus=(),
    bf16=False,
    compiler=True,
    environment={"FRX_BATCH_SIZE": "8", "API_TOKEN": "secret"},
    seen=SEEN,
    quality_checks=True,
)
MACHINE = Machine("e" * 16, one_at_a_time=True, facts=FACTS)
PLACED = Placement("attempt1", "node1", "10.0.0.1", ())
VOID = TrialError("void: 3 attempts were lost", "try again")


def promoted(candidate: Configuration) -> ConfigurationTrial:
    return ConfigurationTrial(Kind.FULL, candidate, (), Fate.PROMOTE, "faster", SEEN)


@dataclass
class Told:
    """An engine whose jobs end as they are told: the baseline as `baseline`, candidates as `candidates` say by id."""

    scratch: Path
    candidates: dict[str, ConfigurationTrial | FrxError] = field(default_factory=dict)
    baseline: RunSeen | TrialError = SEEN
    extra: tuple[tuple[str, bytes], ...] = ()
    """Files that are sent beside those of the trial."""
    environments: list[str | None] = field(default_factory=list)
    ran: list[TuneJob] = field(default_factory=list)

    def on(self, environment: str | None) -> Told:
        self.environments.append(environment)
        return self

    def run(self, jobs: Sequence[Any], progress: object) -> Generator[JobResult[Any]]:
        for number, job in enumerate(jobs):
            self.ran.append(job)
            found = self.baseline if job.candidate is None else self.candidates[job.candidate.id]
            if isinstance(found, FrxError):
                placed = None if found is VOID or isinstance(found, NowhereError) else PLACED
                yield JobResult(number, found, placed)
            else:
                yield JobResult(number, self.brought(found), PLACED)

    def brought(self, found: RunSeen | ConfigurationTrial) -> NodeResult:
        """As a node sends it."""
        there = TuneFolder(self.scratch, SETTINGS)
        if isinstance(found, RunSeen):
            place, machine = there.path / "baseline", MACHINE
            there.begin_trial(place, {})
            there.keep_baseline(found)
        else:
            place, machine = there.get_trial_folder(found.kind, found.configuration.id), None
            there.begin_trial(place, dict(found.configuration.variables))
            there.keep_trial(found)
        files = tuple((str(path.relative_to(place)), path.read_bytes()) for path in place.iterdir())
        return NodeResult(found, (*files, *self.extra), machine)


@pytest.fixture
def told(tmp_path: Path) -> Told:
    return Told(tmp_path / "node")


@pytest.fixture
def folder(tmp_path: Path) -> TuneFolder:
    return make_tune_folder(tmp_path, "tune-1", SETTINGS)


def trials(bench: ClusterBench, *candidates: Configuration) -> list[ConfigurationTrial]:
    return list(bench.run_trials(Kind.FULL, candidates, (), bench.run_baseline(), 2))


def resumed(folder: TuneFolder, told: Told) -> ClusterBench:
    return ClusterBench(SETTINGS, open_tune_folder(folder.path, SETTINGS), told.on)


def test_what_is_found_is_kept_with_where_it_ran_and_not_measured_again(folder: TuneFolder, told: Told) -> None:
    told.candidates = {"a1": promoted(ONE)}
    assert trials(ClusterBench(SETTINGS, folder, told.on), ONE) == [promoted(ONE)]
    # Candidates are about the baseline's environment.
    assert told.environments == [None, "e" * 16]
    assert json.loads((folder.path / "a1" / "place.json").read_text())["attempt"] == "attempt1"
    assert folder.read_trial(Kind.FULL, "a1") == promoted(ONE)
    assert trials(resumed(folder, told), ONE) == [promoted(ONE)]
    assert len(told.ran) == 2


def test_lost_trial_is_inconclusive_and_retried_on_resume(folder: TuneFolder, told: Told) -> None:
    told.candidates = {"a1": VOID, "a2": promoted(OTHER)}
    lost, found = trials(ClusterBench(SETTINGS, folder, told.on), ONE, OTHER)
    assert (lost.fate, lost.reason) == (Fate.INCONCLUSIVE, "void: 3 attempts were lost (try again)")
    assert found == promoted(OTHER)
    assert sorted(path.name for path in (folder.path / "a1").iterdir()) == [
        "benchmark_window.json",
        "config.yaml",
        "stderr.log",
        "stdout.log",
    ]
    assert "void: 3 attempts were lost" in (folder.path / "a1" / "stderr.log").read_text()
    told.candidates["a1"] = promoted(ONE)
    assert trials(resumed(folder, told), ONE, OTHER) == [promoted(OTHER), promoted(ONE)]
    assert [job.candidate and job.candidate.id for job in told.ran] == [None, "a1", "a2", "a1"]


def test_tune_without_a_node_ends_and_keeps_finished_trials(folder: TuneFolder, told: Told) -> None:
    told.candidates = {"a1": promoted(ONE), "a2": NowhereError("the cluster has no node to measure on", "ray status")}
    with pytest.raises(NowhereError) as caught:
        trials(ClusterBench(SETTINGS, folder, told.on), ONE, OTHER)
    assert str(caught.value) == (
        f"the cluster has no node to measure on (ray status; --resume {folder.path} continues when there is one)"
    )
    assert folder.read_trial(Kind.FULL, "a1") == promoted(ONE)
    assert not (folder.path / "a2").exists()
    told.candidates["a2"] = promoted(OTHER)
    assert trials(resumed(folder, told), ONE, OTHER) == [promoted(ONE), promoted(OTHER)]


def test_error_raised_by_a_job_ends_the_tune(folder: TuneFolder, told: Told) -> None:
    told.candidates = {"a1": TrialError("a defect")}
    with pytest.raises(TrialError, match="a defect"):
        trials(ClusterBench(SETTINGS, folder, told.on), ONE)
    assert folder.read_trial(Kind.FULL, "a1") is None


def test_a_baseline_that_came_to_nothing_is_an_error_and_its_files_are_there(folder: TuneFolder, told: Told) -> None:
    class Failed(Told):
        def brought(self, found: RunSeen | ConfigurationTrial) -> NodeResult:
            return NodeResult(TrialError("the program as it is fails"), (("stderr.log", b"no data\n"),), None)

    failed = Failed(told.scratch)
    with pytest.raises(TrialError, match="the program as it is fails"):
        ClusterBench(SETTINGS, folder, failed.on).run_baseline()
    assert (folder.path / "baseline" / "stderr.log").read_text() == "no data\n"
    assert folder.read_baseline() is None


def test_no_file_is_written_outside_the_trials_folder(folder: TuneFolder, told: Told, tmp_path: Path) -> None:
    outside = ("../../up.txt", "../a2/metrics.json", str(tmp_path / "absolute.txt"), "raw/../../../deep.txt")
    told.extra = (*((name, b"x") for name in outside), ("raw/ranks/0.jsonl", b"kept"))
    told.candidates = {"a1": promoted(ONE)}
    before = {path for path in tmp_path.rglob("*") if told.scratch not in (path, *path.parents)}
    assert trials(ClusterBench(SETTINGS, folder, told.on), ONE) == [promoted(ONE)]
    assert (folder.path / "a1" / "raw" / "ranks" / "0.jsonl").read_bytes() == b"kept"
    after = {path for path in tmp_path.rglob("*") if told.scratch not in (path, *path.parents)}
    assert {path.relative_to(folder.path).parts[0] for path in after - before} == {"baseline", "a1"}


def test_resumed_tune_knows_the_machine_but_not_its_secrets(folder: TuneFolder, told: Told) -> None:
    ClusterBench(SETTINGS, folder, told.on).run_baseline()
    assert "secret" not in (folder.path / "baseline" / "machine.json").read_text()
    bench = resumed(folder, told)
    assert bench.run_baseline() == SEEN
    assert len(told.ran) == 1
    facts = bench.gather_facts(replace(SEEN, steps=5))
    assert facts == replace(FACTS, environment={"FRX_BATCH_SIZE": "8"}, seen=replace(SEEN, steps=5))
    told.candidates = {"a1": promoted(ONE)}
    trials(bench, ONE)
    assert told.environments == [None, "e" * 16]
    assert told.ran[-1].one_at_a_time


@pytest.mark.parametrize("text", [None, "", "{}", '{"environment": 1}'])
def test_without_the_machine_the_baseline_is_run_again(folder: TuneFolder, told: Told, text: str | None) -> None:
    ClusterBench(SETTINGS, folder, told.on).run_baseline()
    machine = folder.path / "baseline" / "machine.json"
    machine.unlink()
    if text is not None:
        machine.write_text(text)
    assert resumed(folder, told).run_baseline() == SEEN
    assert len(told.ran) == 2
    assert machine.is_file()


def test_failed_job_returns_its_files_and_names_their_destination(tmp_path: Path) -> None:
    settings = SETTINGS.model_copy(update={"command": (sys.executable, "-S", "-c", "raise SystemExit('no data')")})
    place = str(tmp_path / "tune-1")
    job = TuneJob(settings, place)
    assert job.label == "baseline"
    brought = job(lambda _: None)
    assert isinstance(brought.found, TrialError)
    assert brought.found.hint == f"look at {place}/baseline/stderr.log"
    assert b"no data" in dict(brought.files)["stderr.log"]
    assert "metrics.json" not in dict(brought.files)
    assert brought.machine is None
    assert not list(tmp_path.iterdir())


def test_a_candidates_job_is_named_by_it() -> None:
    assert TuneJob(SETTINGS, "tune-1", Kind.RACE, ONE).label == "race custom:A=1"
