"""What was found in CUDA source as JSON and for people."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import jsonschema
import pytest

from frx_graph.analyzers.cuda.analysis import detect_cuda_defects
from frx_graph.evidence.cuda.parsing import parse_cuda
from frx_graph.reports.kernels.cuda_document import CudaDocument, build_cuda_document
from frx_graph.reports.kernels.cuda_report import render_cuda
from frx_graph.reports.render.document import to_json

PUBLISHED = resources.files("frx_graph.reports").joinpath("frx_cuda_v1.schema.json").read_text(encoding="utf-8")
ZOO = Path(__file__).parents[2] / "data" / "cuda"


def document(text: str) -> CudaDocument:
    source = parse_cuda(text, "kernels.cu")
    return build_cuda_document(source, detect_cuda_defects(source))


WHOLE = document("\n".join(path.read_text() for path in sorted(ZOO.glob("*.cu"))))


@pytest.mark.parametrize("path", sorted(ZOO.glob("*.cu")), ids=lambda path: path.stem)
def test_document_matches_the_schema(path: Path) -> None:
    found = document(path.read_text())
    text = json.dumps(to_json(found), allow_nan=False)
    jsonschema.Draft202012Validator(json.loads(PUBLISHED)).validate(json.loads(text))
    assert CudaDocument.model_validate_json(text) == found


def test_unknown_values_are_null() -> None:
    result = to_json(document("__global__ void k(T* a, int n) { a[f(n)] = 0; }\nvoid g(int t) { k<<<t, t>>>(0, 1); }"))
    assert result["mode"] == "cuda_source"
    (access,) = result["result"]["kernels"][0]["accesses"]
    assert access["stride_kind"] == "unknown"
    assert all(access[key] is None for key in ("element_bytes", "stride", "stride_elements", "stride_bytes"))
    (launch,) = result["result"]["launches"]
    assert (launch["threads"], launch["residency"], launch["suggestion"]) == (None, [], None)


def test_a_finding_explains_its_access() -> None:
    found = to_json(document((ZOO / "uncoalesced_access_bad.cu").read_text()))["result"]
    (finding,) = found["findings"]
    assert (finding["rule"], finding["severity"], finding["line"]) == ("uncoalesced_access", "high", 6)
    assert (finding["access"]["stride"], finding["access"]["stride_kind"]) == ("rows", "symbolic")
    (rule,) = found["rules"]
    assert (rule["id"], rule["findings"]) == ("uncoalesced_access", 1)
    assert found["parse_coverage"] == 1.0


def test_rendered_text() -> None:
    text = render_cuda(WHOLE.result, top=2, width=80, color=False)
    assert "understood" in text
    assert "Findings: " in text
    assert "rows elements of 4 bytes apart" in " ".join(text.split())
    assert "LAUNCHES" in text
    assert text.index("HIGH") < text.index("MEDIUM") < text.index("LOW")
    assert max(len(line) for line in text.splitlines() if "__" not in line) <= 80


def test_a_launch_is_advised_on() -> None:
    found = document((ZOO / "poor_block_size_unaligned_bad.cu").read_text())
    text = " ".join(render_cuda(found.result, top=2, width=80, color=False).split())
    assert "take 128 threads: the last warp has 4 of 32 at work" in text


def test_the_report_names_what_it_does_not_examine() -> None:
    found = document("__global__ void k(float* a) { other(a); }")
    text = " ".join(render_cuda(found.result, top=2, width=80, color=False).split())
    assert "NOT EXAMINED Called functions that are not in the file or its headers, 1: their accesses and" in text
    assert "Kernels that the file does not launch, 1: their block sizes are unknown (k)" in text


def test_empty_result_reports_what_was_read() -> None:
    text = render_cuda(document("__global__ void k() {}").result, top=2, width=80, color=False)
    assert "1 kernel, 0 launches; 100.0% of 22 bytes understood" in " ".join(text.split())
    assert "0 high, 0 medium, 0 low" in text


def test_names_cannot_write_to_the_terminal() -> None:
    text = "__global__ void k(int* a) { a[2 * threadIdx.x /* \x1b[31m [red] \u202e */] = 0; }\n"
    found = render_cuda(document(text).result, top=9, width=200, color=False)
    assert "uncoalesced_access" in found
    assert "\x1b" not in found
    assert "\u202e" not in found
    assert "[red]" in found
