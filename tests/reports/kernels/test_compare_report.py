"""Two programs beside each other as JSON and for people."""

from __future__ import annotations

import json
from importlib import resources

import jsonschema
import pytest
from compared_layers import function, launch, ncu, ptx, source

from frx_graph.analyzers.comparison.comparison import Comparison, compare_layers
from frx_graph.analyzers.layers import Layers
from frx_graph.evidence.ptx.ptxas import Assembled
from frx_graph.reports.kernels.compare_document import CompareDocument, build_compare_document
from frx_graph.reports.kernels.compare_report import render_comparison
from frx_graph.reports.kernels.compare_text import NextCommand
from frx_graph.reports.render.document import to_json

PUBLISHED = resources.files("frx_graph.reports").joinpath("frx_compare_v1.schema.json").read_text(encoding="utf-8")
HOSTILE = "\x1b[31mred\x1b[0m\u202e[bold]<b>\udcff"
AGAIN = NextCommand(
    ("frx", "compare", "my a.cu", "b.cu"),
    ("--with-ptx",),
    ("--gpu-model", "H100"),
    (("--with-ncu",), ("--ncu-a", "a.csv")),
)
STRIDED = "__global__ void f(float* in, float* out, int n) { out[threadIdx.x] = in[n * threadIdx.x]; }"
PLAIN = "__global__ void f(float* in, float* out, int n) { out[threadIdx.x] = in[threadIdx.x]; }"
SPILLS, CLEAN = Assembled(255, 64, 40, 80, 0), Assembled(40, 0, 0, 0, 0)
STALLS = {"stall_share__long_scoreboard": 60.0, "stall_share__barrier": 5.0}

FULL = compare_layers(
    Layers(
        source(STRIDED), ptx(function(), assembled=[SPILLS]), ncu(launch("f", us=90, dram_throughput=40.0, **STALLS))
    ),
    Layers(source(PLAIN), ptx(function(), assembled=[CLEAN]), ncu(launch("f", us=45, dram_throughput=92.0))),
    "a.cu",
    "b.cu",
)
SOURCES = compare_layers(Layers(source(PLAIN)), Layers(source(STRIDED)), "a.cu", "b.cu")
NOTHING = compare_layers(Layers(source(PLAIN)), Layers(ncu=ncu(launch())), "a.cu", "b.csv")
NAMES = compare_layers(
    Layers(ncu=ncu(launch(HOSTILE), launch("x" * 5000), launch("y"))),
    Layers(ncu=ncu(launch(HOSTILE, us=300), launch("z" * 5000))),
    HOSTILE,
    "b" * 3000,
)
VIRTUAL = compare_layers(Layers(ptx=ptx(function())), Layers(ptx=ptx(function(virtual=10))), "a.ptx", "b.ptx")
ALL = pytest.mark.parametrize(
    "found", [FULL, SOURCES, NOTHING, NAMES, VIRTUAL], ids=["full", "sources", "nothing", "names", "virtual"]
)


def text(found: Comparison, width: int = 80) -> str:
    return render_comparison(build_compare_document(found, AGAIN).result, top=3, width=width, color=False)


@ALL
def test_document_matches_the_schema(found: Comparison) -> None:
    published = json.loads(PUBLISHED)
    jsonschema.Draft202012Validator.check_schema(published)
    document = build_compare_document(found, AGAIN)
    written = json.dumps(to_json(document), allow_nan=False)
    jsonschema.Draft202012Validator(published).validate(json.loads(written))
    assert CompareDocument.model_validate_json(written) == document


@ALL
def test_people_see_lines_that_fit(found: Comparison) -> None:
    for width in (80, 120):
        lines = text(found, width).splitlines()
        assert not [line for line in lines if len(line) > width and "frx compare" not in line and "ncu --" not in line]


def test_the_contract() -> None:
    result = to_json(build_compare_document(FULL, AGAIN))
    assert result["mode"] == "comparison"
    result = result["result"]
    assert (result["label_a"], result["label_b"]) == ("a.cu", "b.cu")
    assert result["data_availability"]["compared"] == ["source", "ptx", "ncu"]
    assert set(result["scorecard"]) == {
        "register_efficiency",
        "memory_efficiency",
        "compute_efficiency",
        "launch_efficiency",
    }
    assert [one["weight"] for one in result["scorecard"].values()] == [0.2, 0.3, 0.3, 0.2]
    registers = result["scorecard"]["register_efficiency"]
    assert {"score_a", "score_b", "weight", "available", "winner"} <= set(registers)
    assert result["verdict"]["overall_winner"] == "b"
    assert result["verdict"]["dimensions"]["register_efficiency"] == "b"
    assert result["verdict"]["time"]["readings"][0]["speedup_x"] == pytest.approx(2.0)
    (kernel,) = result["ncu_diff"]["kernels"]
    (dram,) = (one for one in kernel["changes"] if one["metric"] == "dram_throughput")
    assert (dram["unit"], dram["a"], dram["b"], dram["delta"]) == ("%", 40.0, 92.0, 52.0)
    assert {one["metric"]: one["b"] for one in kernel["warp_stalls"]}["barrier"] is None
    assert [one["code"] for one in result["resolved"]] == [
        "uncoalesced_access",
        "ptx_register_pressure",
        "ptx_register_spills",
        "warp_stall_memory",
    ]


def test_rendered_text() -> None:
    said = text(FULL)
    assert said.startswith("WINNER  B  b.cu\n")
    for line in (
        "by measured time",
        "all kernels: 90.0 µs -> 45.0 µs",
        "RESOLVED IN B",
        "- uncoalesced_access: ",
        "DRAM throughput 40.0 % -> 92.0 %",
        "Spill stores a thread (ptxas) 40 B -> 0 B",
        "elements from thread to thread in global in: [n] -> [1]",
        "long_scoreboard 60.0 % -> unknown",
    ):
        assert line in said, line
    assert "REGRESSIONS" not in said
    assert "WHAT CHANGED, PTX for sm_90\n" in said
    assert "ROOT CAUSES IN A\n1. [" in said
    assert "Registers of your GPU instead of sm_90:\n        frx compare 'my a.cu' b.cu --gpu-model H100\n" in said
    assert "--with-n" not in said


def test_a_regression_and_the_next_command() -> None:
    said = text(SOURCES)
    assert said.startswith("WINNER  A  a.cu\n")
    assert "without measurements" in " ".join(said.split())
    assert "REGRESSIONS IN B\n    - uncoalesced_access" in said
    assert "frx compare 'my a.cu' b.cu --with-ptx\n" in said
    assert "frx compare 'my a.cu' b.cu --with-ncu\n" in said
    assert "measured elsewhere:\n        frx compare 'my a.cu' b.cu --ncu-a a.csv\n" in said
    assert "Time of both: not measured" in said


def test_nothing_in_common_lists_the_available_evidence() -> None:
    said = " ".join(text(NOTHING).split())
    assert said.startswith("WINNER UNKNOWN there is no evidence that both sides have")
    assert "CUDA source of A alone: not compared" in said
    assert "Nsight Compute's counters of B alone: not compared" in said


def test_virtual_registers_make_no_claim() -> None:
    said = text(VIRTUAL)
    assert "Virtual registers (low confidence) 100 -> 10" in said
    assert "Registers and spills of A, of which PTX has only virtual ones" in " ".join(said.split())
    assert "spills" not in said.partition("STILL UNKNOWN")[0].lower()


def test_names_are_nobodys_markup() -> None:
    said = text(NAMES)
    assert "\x1b" not in said
    assert "\u202e" not in said
    assert "[31mred[0m[bold]<b>" in said
    colored = render_comparison(build_compare_document(NAMES, AGAIN).result, top=3, width=80, color=True)
    assert "\x1b[31mred" not in colored


def test_non_finite_ratio_can_be_rendered() -> None:
    a, b = Layers(ncu=ncu(launch(us=1e300))), Layers(ncu=ncu(launch(us=1e-300)))
    found = compare_layers(a, b, "a", "b")
    assert json.loads(json.dumps(to_json(build_compare_document(found, AGAIN)), allow_nan=False))
    assert text(found).startswith("WINNER  B  b\n")
