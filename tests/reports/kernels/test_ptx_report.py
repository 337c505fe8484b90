"""PTX findings as JSON and for people."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import jsonschema
import pytest

from frx_graph.analyzers.kernels.ptx_analysis import analyze_ptx_module, resolve_target_gpu
from frx_graph.evidence.ptx.parsing import read_ptx
from frx_graph.evidence.ptx.ptxas import Assembled
from frx_graph.reports.kernels.ptx_document import PtxDocument, build_ptx_document
from frx_graph.reports.kernels.ptx_report import render_ptx
from frx_graph.reports.render.document import to_json

PUBLISHED = resources.files("frx_graph.reports").joinpath("frx_ptx_v1.schema.json").read_text(encoding="utf-8")
KERNELS = Path(__file__).parents[2] / "data" / "ptx" / "kernels_sm80.ptx"


def document(assembled: dict[str, Assembled], reason: str | None) -> PtxDocument:
    module = read_ptx(KERNELS)
    return build_ptx_document(
        module, analyze_ptx_module(module, assembled, resolve_target_gpu(module.target, None)), reason
    )


ASSEMBLED = document({"spills": Assembled(32, 1144, 1396, 2244, 0)}, None)
VIRTUAL = document({}, "there is no ptxas")


@pytest.mark.parametrize("found", [ASSEMBLED, VIRTUAL], ids=["assembled", "virtual"])
def test_document_matches_the_schema(found: PtxDocument) -> None:
    published = json.loads(PUBLISHED)
    jsonschema.Draft202012Validator.check_schema(published)
    text = json.dumps(to_json(found), allow_nan=False)
    jsonschema.Draft202012Validator(published).validate(json.loads(text))
    assert PtxDocument.model_validate_json(text) == found


def test_unknown_is_null() -> None:
    kernels = {kernel["name"]: kernel for kernel in to_json(VIRTUAL)["result"]["kernels"]}
    assert kernels["spills"]["spills_detected"] is None
    assert kernels["spills"]["physical_registers"] is None
    known = {kernel["name"]: kernel for kernel in to_json(ASSEMBLED)["result"]["kernels"]}
    assert (known["spills"]["spills_detected"], known["spills"]["spill_stores"]) == (True, 1396)
    assert to_json(ASSEMBLED)["result"]["primary_bottleneck"] == "ptx_register_spills"


def test_rendered_text() -> None:
    text = render_ptx(ASSEMBLED.result, top=2, width=80, color=False)
    assert "Primary risk: ptx_register_spills" in text
    assert "32 registers, 3640 bytes of spills (ptxas); registers allow 100.0 %" in text
    assert "sm_80 (Ampere), known by the file's target: full occupancy up to 32" in text
    assert "it has cp_async, mbarrier" in text
    assert "ptxas -v" in text
    assert "loop at line" in text
    assert max(len(line) for line in text.splitlines() if "ncu --metrics" not in line) <= 80
    assert "Virtual registers only, low confidence" in render_ptx(VIRTUAL.result, top=2, width=80, color=False)
