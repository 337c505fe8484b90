"""Which files are of one run, told by their names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.evidence.run import bundle_layout
from frx_graph.fleet.run_names import find_run, find_runs, group_files

MAKING = (
    str(bundle_layout.EVENTS),
    str(bundle_layout.SUMMARY),
    str(bundle_layout.GPU_METRICS),
    str(bundle_layout.HOST_METRICS),
    "profiler/profiler_trace.json",
    "profiler/host_1.pt.trace.json.gz",
    "profiler_trace.json",
)


@pytest.mark.parametrize("file", MAKING)
@pytest.mark.parametrize("run", ["", "run-1", "a/b/run-1", "new\nline", "raw"])
def test_files_that_make_a_run(file: str, run: str) -> None:
    assert find_run(f"{run}/{file}" if run else file) == run


@pytest.mark.parametrize("name", ["metadata.json", "raw/trace.json", "profiler/a/b.json", "x_gpu_metrics.csv", "a.zip"])
def test_files_that_make_none(name: str) -> None:
    assert find_run(name) is None


def test_archives_within_runs_are_theirs() -> None:
    names = ["b/raw/trace.jsonl", "b/old.zip", "b/deep/er.zip", "c/d.ZIP", "a.zip", "a/gpu_metrics.csv", "b/raw/x"]
    assert find_runs(names) == (("a", "b"), ("a.zip", "c/d.ZIP"))
    assert group_files(("a", "b"), names) == {
        "a": ["a/gpu_metrics.csv"],
        "b": ["b/raw/trace.jsonl", "b/old.zip", "b/deep/er.zip", "b/raw/x"],
    }


def test_a_run_below_another_one_keeps_its_files() -> None:
    names = ["gpu_metrics.csv", "notes", "a/raw/trace.jsonl", "a/notes", "x/y"]
    assert find_runs(names)[0] == ("", "a")
    assert group_files(("", "a"), names) == {
        "": ["gpu_metrics.csv", "notes", "x/y"],
        "a": ["a/raw/trace.jsonl", "a/notes"],
    }


@given(st.dictionaries(st.text("ab/", max_size=6).map(lambda text: text.strip("/").replace("//", "/")), st.sets(
    st.sampled_from(MAKING), min_size=1), max_size=5))  # fmt: skip
def test_every_run_is_found_with_its_files(runs: dict[str, set[str]]) -> None:
    names = [f"{run}/{file}" if run else file for run, files in runs.items() for file in files]
    assert find_runs(names) == (tuple(sorted(runs)), ())
    found = group_files(runs, names)
    assert {run: len(files) for run, files in found.items()} == {run: len(files) for run, files in runs.items()}
