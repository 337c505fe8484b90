"""An export's findings as JSON and for people."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import jsonschema
import pytest
from ncu_exports import MEMORY, OCCUPANCY, RAW, SOL, Launch, long_export, metric

from frx_graph.analyze.nsight_compute import analyze_ncu
from frx_graph.reports.kernels.kernel_document import NcuDocument, build_ncu_document
from frx_graph.reports.kernels.kernel_report import render_kernels
from frx_graph.reports.render.document import to_json
from frx_graph.rules.gpu_profile import require_gpu

PUBLISHED = resources.files("frx_graph.reports").joinpath("frx_ncu_v1.schema.json").read_text(encoding="utf-8")
STREAM = Launch(number=0, kernel="void stream<float>(float *, int)")
WAITING = Launch(number=1, kernel="\x1b[31m\u202e=cmd|'[red]gemm<b>\n" + "x" * 400)
EXPORT = long_export(
    metric(STREAM, SOL, "Duration", "us", "900.00"),
    metric(STREAM, SOL, "Compute (SM) Throughput", "%", "20.00"),
    metric(STREAM, SOL, "Memory Throughput", "%", "90.00"),
    metric(STREAM, SOL, "DRAM Throughput", "%", "90.00"),
    metric(STREAM, MEMORY, "L2 Hit Rate", "%", "n/a"),
    metric(STREAM, RAW, "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio", "", "12.00"),
    metric(WAITING, SOL, "Duration", "us", "100.00"),
    metric(WAITING, SOL, "Compute (SM) Throughput", "%", "10.00"),
    metric(WAITING, SOL, "Memory Throughput", "%", "20.00"),
    metric(WAITING, OCCUPANCY, "Achieved Occupancy", "%", "16.00"),
    metric(WAITING, OCCUPANCY, "Theoretical Occupancy", "%", "16.67"),
    metric(WAITING, OCCUPANCY, "Block Limit Registers", "block", "2"),
    metric(WAITING, OCCUPANCY, "Block Limit Warps", "block", "12"),
    metric(WAITING, SOL, "SM Frequency", "parsec", "1"),
)


@pytest.fixture
def document(tmp_path: Path) -> NcuDocument:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    path = folder / "report.csv"
    path.write_text(EXPORT)
    return build_ncu_document(*analyze_ncu(path))


def test_the_published_schema_is_that_of_the_code(document: NcuDocument) -> None:
    published = json.loads(PUBLISHED)
    jsonschema.Draft202012Validator.check_schema(published)
    text = json.dumps(to_json(document), allow_nan=False)
    jsonschema.Draft202012Validator(published).validate(json.loads(text))
    assert NcuDocument.model_validate_json(text) == document


def test_document_contents(document: NcuDocument) -> None:
    found = to_json(document)
    assert found["mode"] == "ncu"
    result = found["result"]
    assert result["primary_bottleneck"] == "memory_bandwidth_bound"
    assert "occupancy_limited_by_registers" in result["secondary_bottlenecks"]
    first, second = result["kernel_attribution"]["top_opportunities"]
    assert first["kernel_name"] == STREAM.kernel
    assert (first["roofline_region"], first["runtime_share_pct"]) == ("memory_bound", pytest.approx(90.0))
    assert second["roofline_region"] == "latency_bound"
    cards = {card["id"]: card for card in result["recommendations"]}
    coalesce = cards["rec_coalesce_global_loads"]["validation_steps"][0]
    assert (coalesce["current_value"], coalesce["direction"], coalesce["threshold_good"]) == (12.0, "decrease", None)
    assert cards["rec_reduce_registers"]["validation_steps"][0]["current_value"] is None
    assert "l2_hit_rate" in result["missing"]["memory"]
    # The name of that kernel goes over two lines, in each of its rows.
    assert result["unread"] == ["line 22: unknown unit: SM Frequency in 'parsec'"]


def test_rendered_text(document: NcuDocument) -> None:
    text = render_kernels(document.result, top=2, width=80, color=False)
    titles = ("VERDICT", "KERNELS", "MEASURED METRICS", "BOTTLENECKS DETECTED", "RECOMMENDATIONS", "NEXT STEPS")
    places = [text.index(title) for title in titles]
    assert places == sorted(places)
    assert "[!!] DRAM throughput" in text
    assert "[ !] Sectors a global load" in text
    # Of kernels that multiply no matrices tensor cores say nothing.
    assert "Tensor pipe" not in text
    assert "--> " in text or "<-- " in text
    assert "was 90; " in text
    assert "more: --top" in text
    assert "Primary bottleneck: memory_bandwidth_bound (confidence 0.90)\n" in text
    assert "Less sure" not in text
    assert "Tier 1, the code" in text
    assert "\n        frx profile --preset memory -- ./your_app\n" in text
    lines = [line for line in text.splitlines() if "ncu --metrics" not in line]
    assert max(map(len, lines)) <= 80


def test_without_a_verdict_less_is_sure(tmp_path: Path) -> None:
    path = tmp_path / "report.csv"
    path.write_text(long_export(metric(STREAM, SOL, "DRAM Throughput", "%", "90.00")))
    text = render_kernels(build_ncu_document(*analyze_ncu(path)).result, top=2, width=80, color=False)
    assert "(confidence 0.60)\n    Confidence is reduced" in text


def test_hostile_names_are_harmless(document: NcuDocument) -> None:
    for color in (False, True):
        text = render_kernels(document.result, top=9, width=80, color=color)
        assert "\u202e" not in text
        assert "\x1b[31m=" not in text
        assert "[red]gemm" in text
    assert "\x1b" not in render_kernels(document.result, top=9, width=80, color=False)


def test_unknown_bottleneck_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "report.csv"
    path.write_text(long_export(metric(STREAM, RAW, "gpu__time_duration.sum", "ns", "1,000")))
    document = build_ncu_document(*analyze_ncu(path))
    assert document.result.primary_bottleneck is None
    text = render_kernels(document.result, top=5, width=80, color=False)
    assert "Primary bottleneck: unknown, too few metrics" in text
    assert "unknown" in text
    assert text.count("frx profile --preset full -- ./your_app") == 1


def test_shares_of_one_kernel_are_listed_per_device(tmp_path: Path) -> None:
    rows = []
    for number, us in enumerate(("300.00", "100.00")):
        launch = Launch(number, "stream", device=str(number))
        rows += [
            metric(launch, SOL, "Duration", "us", us),
            metric(launch, SOL, "Compute (SM) Throughput", "%", "30.00"),
        ]
        rows += [
            metric(launch, SOL, "Memory Throughput", "%", "90.00"),
            metric(launch, SOL, "DRAM Throughput", "%", "90.00"),
        ]
    path = tmp_path / "report.csv"
    path.write_text(long_export(*rows))
    text = render_kernels(build_ncu_document(*analyze_ncu(path)).result, top=1, width=100, color=False)
    shares = [line.split()[1] for line in text.splitlines() if line.startswith("stream ")]
    assert shares == ["75.0", "25.0"]


def test_tensor_cores_and_cache_of_a_gpu_that_is_known(tmp_path: Path) -> None:
    launch = Launch(kernel="gemm")
    rows = [
        metric(launch, RAW, "gpu__time_duration.sum", "ns", "1,000,000"),
        metric(launch, RAW, "dram__bytes_read.sum", "byte", "100,000,000"),
        metric(launch, RAW, "dram__bytes_write.sum", "byte", "20,000,000"),
        metric(launch, RAW, "sm__ops_path_tensor_src_bf16_dst_fp32.sum", "", "494,700,000,000"),
        metric(launch, RAW, "sm__ops_path_tensor_src_fp16_dst_fp32.sum", "", "n/a"),
    ]
    path = tmp_path / "report.csv"
    path.write_text(long_export(*rows))
    result = build_ncu_document(*analyze_ncu(path, require_gpu("H100"))).result
    text = " ".join(render_kernels(result, top=1, width=100, color=False).split())
    assert "120 MB of DRAM traffic a launch; the L2 cache holds 52.4 MB" in text
    assert "bf16 on tensor cores at 50.0 % of the peak" in text
    assert "at the peaks arithmetic and DRAM meet at 295" in text
    (kernel,) = result.kernels
    assert kernel.gpu is not None
    assert kernel.gpu.peak_pct == {"bf16": pytest.approx(50.0)}
    assert result.kernel_attribution.top_opportunities[0].roofline_region == "compute_bound"


def test_measured_values_are_not_listed_as_missing(tmp_path: Path) -> None:
    path = tmp_path / "report.csv"
    counters = ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum")
    idle = metric(STREAM, RAW, "smsp__issue_inst0.avg.pct_of_peak_sustained_active", "%", "80")
    path.write_text(long_export(*(metric(STREAM, RAW, name, "", "100") for name in counters), idle))
    result = build_ncu_document(*analyze_ncu(path)).result
    assert {"sectors_per_load", "issue_slots_busy"}.isdisjoint(result.missing["full"])
    assert "sectors_per_store" in result.missing["full"]
