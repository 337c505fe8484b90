"""The analyses as functions: what they return is what the command line prints."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from written_runs import waiting_run

from frx_graph import api
from frx_graph.cli.main import run
from frx_graph.errors import EvidenceError, OptionError

DATA = Path(__file__).parent / "data"
TRACE = DATA / "traces" / "hta_alexnet_one_forward.json.gz"
EXPORT = (
    '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n'
    '"0","copy","dram__throughput.avg.pct_of_peak_sustained_elapsed","%","92.5"\n'
    '"0","copy","gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed","%","92.5"\n'
    '"0","copy","sm__throughput.avg.pct_of_peak_sustained_elapsed","%","10"\n'
    '"0","copy","gpu__time_duration.sum","nsecond","12000"\n'
)
SOURCE = """__global__ void scale(float* x, int stride) { x[threadIdx.x * stride] *= 2.0f; }
void launch(float* x) { scale<<<128, 256>>>(x, 8); }
"""
PTX = next(iter(sorted((DATA / "ptx").rglob("*.ptx"))))


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    run([*arguments, "--json"])
    result = json.loads(capsys.readouterr().out)
    found: dict[str, object] = result.get("result", result)
    return found


@pytest.mark.parametrize(
    ("analyse", "text", "name"),
    [
        (api.analyze_ptx_text, PTX.read_text(), "kernel.ptx"),
        (api.analyze_ncu_csv_text, EXPORT, "report.csv"),
        (api.inspect_cuda_source, SOURCE, "kernel.cu"),
    ],
)
def test_the_analysis_of_a_file(analyse, text, name, tmp_path, capsys) -> None:
    (tmp_path / name).write_text(text)
    expected = printed(capsys, "analyze", str(tmp_path / name))
    found = json.loads(analyse(text).model_dump_json(by_alias=True))
    for document in (found, expected):
        document.pop("source")
    assert found.keys() == expected.keys()
    assert {key: value for key, value in found.items() if name not in json.dumps(value)} == {
        key: value for key, value in expected.items() if name not in json.dumps(value)
    }
    assert "frx-graph-" not in json.dumps(found.get("kernels", ""))


def test_a_trace_and_a_run(tmp_path: Path) -> None:
    assert api.analyze_trace_file(TRACE).schema_ == "frx_trace_v1"
    folder = waiting_run().write(tmp_path / "run-1")
    from_folder = api.summarize_run(folder)
    events = [json.loads(line) for line in (folder / "raw" / "trace.jsonl").read_text().splitlines()]
    from_events = api.summarize_run_with_steady_state(events)
    assert from_events.steady_state.diagnosis.user_facing_bottleneck == "input_bound"
    assert from_folder.steady_state.diagnosis.user_facing_bottleneck == "input_bound"
    assert from_events.event_count == from_folder.event_count


def test_evidence_of_several_layers() -> None:
    evidence = api.Evidence(cuda_source=SOURCE, ncu_csv=EXPORT)
    found = api.reconcile_evidence(evidence)
    assert set(found.layers_available) == {"source", "ncu"}
    assert api.what_evidence_is_missing(evidence) == found.missing_evidence
    better = SOURCE.replace("threadIdx.x * stride", "threadIdx.x")
    compared = api.compare_evidence(api.Evidence(SOURCE), api.Evidence(better), labels=("before", "after"))
    assert "uncoalesced_access" in json.dumps(compared.model_dump(mode="json"))
    assert api.build_explain_result(api.analyze_ncu_csv_text(EXPORT)).primary_diagnosis is not None
    with pytest.raises(EvidenceError, match="no evidence"):
        api.reconcile_evidence(api.Evidence())


def test_input_that_is_nothing_is_refused() -> None:
    for analyse in (api.analyze_ptx_text, api.analyze_ncu_csv_text, api.inspect_cuda_source):
        with pytest.raises(EvidenceError):
            analyse("hello")


def test_input_that_no_file_can_hold() -> None:
    assert api.inspect_cuda_source("// \ud800\n" + SOURCE).source == "kernel.cu"
    with pytest.raises(EvidenceError, match="cannot be written as JSON"):
        api.summarize_run_with_steady_state([{"type": {1, 2}}])
    with pytest.raises(OptionError):
        api.analyze_ptx_text("hello", gpu_model="no such GPU")


def test_no_result_names_a_folder_that_is_gone() -> None:
    compared = api.compare_evidence(api.Evidence(SOURCE), api.Evidence(SOURCE, ncu_csv=EXPORT))
    for found in (api.analyze_ptx_text(PTX.read_text()), api.analyze_ncu_csv_text(EXPORT), compared):
        assert "frx-graph-" not in found.model_dump_json(by_alias=True)
    with pytest.raises(EvidenceError) as caught:
        api.analyze_ncu_csv_text("hello")
    assert "frx-graph-" not in str(caught.value)


def test_the_example_of_the_documentation() -> None:
    text = (Path(__file__).parents[1] / "docs" / "api.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "ptx_fp64_usage"
