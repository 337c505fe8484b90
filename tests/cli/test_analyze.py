from __future__ import annotations

import gzip
import importlib.util
import json
import re
from pathlib import Path

import pytest
import typer
from ncu_exports import SOL, Launch, long_export, metric
from ncu_reports import A40, ReportLaunch, ReportRule, report

from frx_graph.cli.analyze import analyze
from frx_graph.errors import EvidenceError, OptionError

TRACES = Path(__file__).parent.parent / "data" / "traces"
RESNET = str(TRACES / "kineto_resnet50_two_steps.pt.trace.json.gz")
MI250 = str(TRACES / "hta_mi250_minitoy_train.json.gz")
CUDA = str(TRACES.parent / "cuda" / "uncoalesced_access_bad.cu")


def run(*arguments: str) -> int:
    app = typer.Typer(rich_markup_mode=None)
    app.command()(analyze)
    code: int = app(args=list(arguments), standalone_mode=False)
    return code


def test_findings_exit_with_1_and_none_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--trace", RESNET) == 1
    assert "FRX004" in capsys.readouterr().out
    assert run("--trace", MI250) == 0
    assert "No findings to show" in capsys.readouterr().out


def test_exit_zero() -> None:
    assert run("--trace", RESNET, "--exit-zero") == 0


def test_the_model_names_the_report_and_rules_are_selected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "report.json"
    assert (
        run("--trace", RESNET, "--model", "ResNet-50", "--format", "json", "-o", str(output), "--select", "FRX007") == 1
    )
    document = json.loads(output.read_text())
    assert document["target"] == "ResNet-50"
    assert [finding["rule"] for finding in document["findings"]] == ["FRX007"]
    assert run("--trace", RESNET, "--ignore", "FRX00") == 0


def test_unreadable_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="no such file"):
        run("--trace", str(tmp_path / "none.json"))


def test_an_unknown_rule_is_an_error_before_the_trace_is_read(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="--select"):
        run("--trace", str(tmp_path / "none.json"), "--select", "FRX999")


@pytest.fixture
def export(tmp_path: Path) -> Path:
    launch = Launch()
    path = tmp_path / "report.csv"
    path.write_text(
        long_export(
            metric(launch, SOL, "Duration", "us", "90.00"),
            metric(launch, SOL, "Compute (SM) Throughput", "%", "20.00"),
            metric(launch, SOL, "Memory Throughput", "%", "90.00"),
            metric(launch, SOL, "DRAM Throughput", "%", "90.00"),
        )
    )
    return path


def test_file_kind_is_detected_from_its_content(
    export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(RESNET, "--exit-zero") == 0
    shown = capsys.readouterr().out
    assert "RUN VERDICT" in shown
    assert "FRX004" in shown
    renamed = export.rename(tmp_path / "trace.json")
    assert run(str(renamed)) == 1
    assert "memory_bandwidth_bound" in capsys.readouterr().out
    assert run(str(renamed), "--exit-zero") == 0


def test_an_export_as_json(export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(export), "--json") == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["mode"], document["result"]["launches"]) == ("ncu", 1)
    output = tmp_path / "out.json"
    assert run(str(export), "--format", "json", "--output", str(output)) == 1
    assert json.loads(output.read_text()) == document


def test_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    renamed = tmp_path / "report.csv"
    renamed.write_bytes(Path(MI250).read_bytes())
    assert run(str(renamed), "--json") == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["mode"], document["result"]["primary_bottleneck"]) == ("trace", "host_bound")
    host_only = tmp_path / "trace.json"
    host_only.write_text('[{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2}]')
    assert run(str(host_only)) == 2
    assert "insufficient_telemetry" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"traceEvents": [', "ends in the middle"),
        (gzip.compress(b'{"traceEvents": []}' * 99, mtime=0)[:40], "gzip data is truncated"),
        (b'{"traceEvents": []}', "without any operator or kernel"),
        (
            b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": NaN, "dur": 1}]}',
            "'ts' is NaN, expected microseconds",
        ),
        (b'[{"ph": "X", "cat": "kernel", "name": "k", "ts": 1e999, "dur": 1}]', "event 0: 'ts' is 1e999"),
        (b'[{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": -1}]', "without any operator or kernel"),
        (b'[{"ph": "X", "cat": "kernel", "ts": 1, "dur": 1}]', "'name' is nothing, expected a string"),
        (b'{"a": ' + b"[" * 100_000, "nested too deeply"),
    ],
)
def test_unreadable_trace_error_names_the_file_and_the_reason(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(EvidenceError, match=re.escape(said)) as error:
        run(str(path))
    assert str(path) in str(error.value)


def test_ptx(capsys: pytest.CaptureFixture[str]) -> None:
    ptx = str(TRACES.parent / "ptx" / "kernels_sm80.ptx")
    assert run(ptx) == 1
    assert "STATIC VERDICT" in capsys.readouterr().out
    assert run(ptx, "--json", "--exit-zero") == 0
    assert json.loads(capsys.readouterr().out)["mode"] == "ptx"


def test_a_named_gpu_is_taken_in_place_of_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    launch = Launch()
    names = ("Registers Per Thread", "Static Shared Memory Per Block", "Dynamic Shared Memory Per Block")
    units = ("register/thread", "byte/block", "byte/block")
    rows = [metric(launch, SOL, name, unit, value) for name, unit, value in zip(names, units, "800", strict=True)]
    path = tmp_path / "report.csv"
    rows.append(metric(launch, SOL, "device__attribute_display_name", "", "NVIDIA X1"))
    path.write_text(long_export(*rows))
    assert run(str(path), "--json") == 0
    (kernel,) = json.loads(capsys.readouterr().out)["result"]["kernels"]
    assert (kernel["device_name"], kernel["gpu"]["name"]) == ("NVIDIA X1", "sm_90 (Hopper)")
    assert run(str(path)) == 0
    assert "GPU: NVIDIA X1 is not listed" in capsys.readouterr().out
    assert run(str(path), "--gpu-model", "RTX 5090") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "BY LIMITS AND DATA SHEET of RTX 5090 known by --gpu-model, instead of NVIDIA X1" in out


@pytest.mark.skipif(importlib.util.find_spec("ncu_report") is None, reason="needs the [ncu] extra")
def test_a_binary_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = {
        "gpu__time_duration.sum": 1637408.0,
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": 94.2,
        "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": 94.2,
        "sm__throughput.avg.pct_of_peak_sustained_elapsed": 74.8,
    }
    rules = [ReportRule("CPIStall", "WarpStateStats", "It [red]waits."), ReportRule("Note", "SpeedOfLight", "So.", 1)]
    path = tmp_path / "kernel.ptx"
    path.write_bytes(report(ReportLaunch(values={**A40, **values}, rules=rules)))
    assert run(str(path)) == 1
    out = capsys.readouterr().out
    assert "1 kernel, 1 launch, a binary report" in out
    assert "CPIStall (WarpStateStats): It [red]waits." in out
    assert "Note (SpeedOfLight)" not in out
    assert run(str(path), "--json") == 1
    result = json.loads(capsys.readouterr().out)["result"]
    assert (result["form"], result["primary_bottleneck"]) == ("report", "memory_bandwidth_bound")
    (kernel,) = result["kernels"]
    assert (kernel["device_name"], kernel["gpu"]["known_by"]) == ("NVIDIA A40", "the file's device name")
    assert [rule["name"] for rule in kernel["ncu_rules"]] == ["CPIStall", "Note"]


def test_ptx_for_a_named_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    ptx = str(TRACES.parent / "ptx" / "kernels_sm80.ptx")
    assert run(ptx, "--json", "--exit-zero") == 0
    by_target = json.loads(capsys.readouterr().out)["result"]["gpu"]
    assert (by_target["target"], by_target["full_occupancy_registers"]) == ("sm_80", 32)
    assert run(ptx, "--json", "--exit-zero", "--gpu-model", "RTX4090") == 0
    named = json.loads(capsys.readouterr().out)["result"]["gpu"]
    assert (named["name"], named["target"], named["full_occupancy_registers"]) == ("RTX 4090", "sm_89", 40)
    with pytest.raises(OptionError, match="is for sm_80, which T4 cannot run"):
        run(ptx, "--gpu-model", "T4")


def test_cuda_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad, good = (TRACES.parent / "cuda" / f"uncoalesced_access_{kind}.cu" for kind in ("bad", "good"))
    assert run(str(bad)) == 1
    assert "SOURCE VERDICT" in capsys.readouterr().out
    assert run(str(good)) == 0
    renamed = tmp_path / "kernel.txt"
    renamed.write_text("void f() { ns::k<int><<<1, 2>>>(); }\n")
    capsys.readouterr()
    assert run(str(renamed), "--json") == 0
    assert json.loads(capsys.readouterr().out)["mode"] == "cuda_source"


def test_source_for_a_named_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "kernel.cu"
    path.write_text(
        "__global__ void k(float* a) { __shared__ float t[6000]; t[threadIdx.x] = a[threadIdx.x]; }\n"
        "void run(float* a) { k<<<160, 256>>>(a); }\n"
    )
    assert run(str(path), "--json", "--exit-zero") == 0
    anywhere = json.loads(capsys.readouterr().out)["result"]
    (launch,) = anywhere["launches"]
    assert anywhere["gpu_model"] is None
    assert [one["gpu"] for one in launch["residency"]][:3] == ["sm_70", "sm_75", "sm_80"]
    assert {one["waves"] for one in launch["residency"]} == {None}
    assert run(str(path), "--json", "--exit-zero", "--gpu-model", "RTX4090") == 0
    result = json.loads(capsys.readouterr().out)["result"]
    (launch,) = result["launches"]
    assert result["gpu_model"] == "RTX 4090"
    # 100 KiB of shared memory hold four times 24,000 bytes and the driver's 1 KiB; 160 blocks fill 4 x 128 places once.
    expected = {"gpu": "RTX 4090", "blocks_per_sm": 4, "limiter": "shared memory", "waves": 160 / (4 * 128)}
    assert launch["residency"] == [{**expected, "occupancy": pytest.approx(4 * 8 / 48)}]
    assert run(str(path), "--exit-zero", "--gpu-model", "RTX4090") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "judged for RTX 4090" in out
    assert "occupancy at most 67% on RTX 4090, 4 blocks by shared memory, 0.31 waves" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name one file to analyse"),
        (("EXPORT", "--trace", RESNET), "name one file to analyse"),
        (("EXPORT", "--format", "sarif"), "--format sarif is only for layout findings"),
        (("EXPORT", "--select", "FRX001"), "--select and --ignore"),
        (("EXPORT", "--gpu-model", "H1000"), "no GPU is known by the name 'H1000'"),
        (("EXPORT", "--gpu-model", "MI300X"), "not a GPU that runs CUDA kernels"),
        ((RESNET, "--select", "FRX001"), "--trace reports the layout findings alone"),
        ((RESNET, "--model", "ResNet-50"), "--model names the report on the layouts"),
        ((RESNET, "--format", "html"), "--trace reports the layout findings alone"),
        (("EXPORT", "--output", "/nowhere/at/all.json"), "no such folder"),
    ],
)
def test_conflicting_options_are_refused(export: Path, arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        run(*(str(export) if argument == "EXPORT" else argument for argument in arguments))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"NVR\0\x02\0", "is damaged or not complete"),
        (b"hello\n", "neither its name nor its content tells"),
    ],
)
def test_unrecognized_evidence_is_an_error(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "evidence"
    path.write_bytes(content)
    with pytest.raises(EvidenceError, match=said):
        run(str(path))


def test_insufficient_metrics_are_not_reported_as_nothing_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.csv"
    path.write_text(long_export(metric(Launch(capability=""), SOL, "Duration", "us", "90.00")))
    assert run(str(path)) == run(str(path), "--exit-zero") == 2
    assert "Primary bottleneck: unknown" in capsys.readouterr().out
    assert run(str(path), "--output-json") == 2
    assert json.loads(capsys.readouterr().out)["result"]["primary_bottleneck"] is None
    with path.open("a") as file:
        for name, value in (("Compute (SM) Throughput", "90.00"), ("Memory Throughput", "20.00")):
            file.write(metric(Launch(1, "busy"), SOL, name, "%", value) + "\n")
    assert run(str(path)) == 0


@pytest.mark.parametrize("rest", ["", ".func f()\n{\n ret;\n}\n", ".extern .entry k();\n"])
def test_ptx_without_a_kernel_is_an_error(tmp_path: Path, rest: str) -> None:
    path = tmp_path / "kernel.ptx"
    path.write_text(f".version 8.0\n.target sm_80\n.address_size 64\n{rest}")
    with pytest.raises(EvidenceError, match=r"kernel\.ptx: .*no \.entry"):
        run(str(path))


def test_source_without_a_readable_kernel_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "cut.cu"
    path.write_text("__global__ void k(float* a")
    with pytest.raises(EvidenceError, match=r"cut\.cu: no kernel in it can be read \(k\)"):
        run(str(path))
    path.write_text("__global__ void whole() {}\n__global__ void cut(float* a")
    assert run(str(path)) in (0, 1)
