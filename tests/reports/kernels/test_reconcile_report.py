"""What layers say together, as JSON and for people; and of files, end to end."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib import resources
from itertools import permutations
from pathlib import Path

import jsonschema
import pytest
from ncu_exports import RAW, Launch, long_export, metric

from frx_graph.analyze.layers import read_layers
from frx_graph.analyzers.reconcile.reconciliation import reconcile
from frx_graph.analyzers.reconcile.signal import Layer
from frx_graph.errors import OptionError
from frx_graph.reports.kernels.reconcile_document import ReconcileDocument, build_reconcile_document
from frx_graph.reports.kernels.reconcile_report import render_reconciliation
from frx_graph.reports.render.document import to_json

PUBLISHED = resources.files("frx_graph.reports").joinpath("frx_reconcile_v1.schema.json").read_text(encoding="utf-8")
DATA = Path(__file__).parents[2] / "data"
ZOO = DATA / "cuda"
TRACE = DATA / "traces" / "kineto_resnet50_two_steps.pt.trace.json.gz"
SECTORS = "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_{}.ratio"
NAME = "transpose(const float *, float *, int, int)"
PTX = """.version 8.0
.target sm_80
.address_size 64
.visible .entry _Z9transposePKfPfii(.param .u64 p) { .reg .f32 %f<2>; .reg .b64 %rd<2>; ld.global.f32 %f1, [%rd1];
ret; }
"""


def export(kernel: str = NAME, store: str = "32.0", load: str = "4.0") -> str:
    launch = Launch(kernel=kernel)
    return long_export(
        metric(launch, RAW, SECTORS.format("ld"), "sector", load),
        metric(launch, RAW, SECTORS.format("st"), "sector", store),
    )


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """All four layers of a program."""
    source, ptx, counters, run = (tmp_path / name for name in ("k.cu", "k.ptx", "k.csv", "run.json.gz"))
    shutil.copy(ZOO / "uncoalesced_access_bad.cu", source)
    ptx.write_text(PTX)
    counters.write_text(export())
    shutil.copy(TRACE, run)
    return [source, ptx, counters, run]


def document(*paths: Path) -> ReconcileDocument:
    layers = read_layers(paths)
    return build_reconcile_document(layers, reconcile(layers))


def checked(found: ReconcileDocument) -> dict:
    text = json.dumps(to_json(found), allow_nan=False)
    jsonschema.Draft202012Validator(json.loads(PUBLISHED)).validate(json.loads(text))
    assert ReconcileDocument.model_validate_json(text) == found
    return json.loads(text)["result"]


def test_four_layers(files: list[Path]) -> None:
    result = checked(document(*files))
    assert result["layers_available"] == ["source", "ptx", "ncu", "profiler"]
    first = result["diagnoses"][0]
    assert (first["diagnosis"], first["kernel"], first["confidence"]) == (
        "inefficient_global_memory_access",
        NAME,
        "confirmed",
    )
    assert result["primary_diagnosis"] == first["diagnosis"]
    assert {(one["layer"], one["grade"]) for one in first["agreeing"]} == {("source", "certain"), ("ncu", "measured")}
    (kernel,) = [one for one in result["kernels"] if one["name"] == NAME]
    assert kernel["names"] == {"source": ["transpose"], "ptx": ["_Z9transposePKfPfii"], "ncu": [NAME]}
    assert any(one["label"] == "input_bound" or one["kernel"] is None for one in result["unreconciled"])


@pytest.mark.parametrize("index", range(4))
def test_each_alone(files: list[Path], index: int) -> None:
    result = checked(document(files[index]))
    assert result["layers_available"] == [list(Layer)[index].value]


def test_the_order_of_files_does_not_matter(files: list[Path]) -> None:
    whole = document(*files)
    for order in list(permutations(files))[1::9]:
        assert document(*order) == whole


def test_two_files_of_one_layer_are_one_too_many(files: list[Path], tmp_path: Path) -> None:
    other = tmp_path / "other.cu"
    shutil.copy(files[0], other)
    with pytest.raises(OptionError, match="both"):
        read_layers([files[0], other])


def test_a_counter_refutes_what_the_source_looks_like(files: list[Path]) -> None:
    files[2].write_text(export(store="4.0"))
    result = checked(document(*files[:3]))
    assert result["diagnoses"] == []
    refuted = [one for one in result["unreconciled"] if one["why"] == "refuted"]
    assert [(one["label"], one["diagnosis"]) for one in refuted] == [
        ("uncoalesced_access", "inefficient_global_memory_access")
    ]


def test_rendered_text(files: list[Path]) -> None:
    text = render_reconciliation(document(*files[:1]).result, top=5, width=80, color=False)
    assert "1. [MEDIUM] Inefficient access of global memory" in text
    assert "confidence: medium -> confirmed if ncu confirms it" in text
    assert "--kernel-name transpose" in text
    assert "ncu --set full --csv" in text
    assert "not at hand" in text
    assert max(len(line) for line in text.splitlines() if "ncu --" not in line) <= 80
    whole = render_reconciliation(document(*files).result, top=5, width=80, color=False)
    assert "1. [CONFIRMED]" in whole
    assert "UNRECONCILED" in whole
    assert max(len(line) for line in whole.splitlines() if "ncu --" not in line) <= 80


def test_empty_result_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    path.write_text("__global__ void k(float* a) { a[threadIdx.x] = 0; }\n")
    result = checked(document(path))
    assert (result["diagnoses"], result["primary_diagnosis"], result["missing_evidence"]) == ([], None, [])
    text = render_reconciliation(document(path).result, top=5, width=80, color=False)
    assert "None that these layers show." in text
    assert "MISSING" not in text


@pytest.mark.parametrize("name", ["\x1b[31m[red]evil()", "‮k", "<b>k</b>", "k; rm -rf /", "=cmd|k", "\ud800"])
def test_names_are_shown_and_do_nothing(files: list[Path], name: str) -> None:
    files[2].write_bytes(export(kernel=name.replace('"', "")).encode("utf-8", "surrogatepass"))
    text = render_reconciliation(document(files[2]).result, top=9, width=200, color=False)
    assert "inefficient_global_memory_access" in text
    assert not set(text) & {"\x1b", "‮", "\ud800"}
    assert "[red]evil()" in text or "[red]" not in name
    checked(document(files[2]))


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")
@pytest.mark.parametrize(
    ("rule", "diagnosis", "kernel", "confidence"),
    [
        ("uncoalesced_access_bad", "inefficient_global_memory_access", "transpose", "medium"),
        ("fp32_only_matmul_bad", "tensor_cores_unused", "product", "high"),
        ("high_register_pressure_bad", "register_pressure_and_spills", "window", "high"),
        ("possible_shared_memory_bank_conflict_bad", "shared_memory_bank_conflicts", "columns", "medium"),
        ("sync_inside_tight_loop_bad", "synchronization_overhead", "total", "medium"),
        ("low_theoretical_occupancy_bad", "low_occupancy", "stage", "medium"),
    ],
)
def test_source_and_what_nvcc_makes_of_it(
    tmp_path: Path, rule: str, diagnosis: str, kernel: str, confidence: str
) -> None:
    ptx = tmp_path / "k.ptx"
    subprocess.run(["nvcc", "-ptx", "-arch=sm_80", "-o", str(ptx), str(ZOO / f"{rule}.cu")], check=True)
    result = checked(document(ZOO / f"{rule}.cu", ptx))
    assert len(result["kernels"]) == 1
    assert set(result["kernels"][0]["names"]) == {"source", "ptx"}
    found = {one["diagnosis"]: one["confidence"] for one in result["diagnoses"] if kernel in one["kernel"]}
    assert found[diagnosis] == confidence


@pytest.mark.integration
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")
def test_good_source_and_its_ptx_have_no_diagnosis(tmp_path: Path) -> None:
    for path in sorted(ZOO.glob("*_good.cu")):
        ptx = tmp_path / "k.ptx"
        subprocess.run(["nvcc", "-ptx", "-arch=sm_80", "-o", str(ptx), str(path)], check=True)
        found = [one for one in document(path, ptx).result.diagnoses if one.confidence != "low"]
        assert found == [], path.name
