"""`frx collect` as it is typed, with programs that are really run."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import psutil
import pytest
import yaml

from frx_graph.cli.main import run
from frx_graph.evidence.run import bundle_layout
from frx_graph.evidence.run.bundle import open_bundle
from frx_graph.evidence.run.device_samples import read_device_samples
from frx_graph.reports.render.document import to_json
from frx_graph.reports.runs.collect_report import CollectDocument, render_collected
from frx_graph.runs.collect import bundle_writing, collection, imported_artifacts, sampling

PUBLISHED = resources.files("frx_graph.reports").joinpath("frx_collect_v1.schema.json").read_text(encoding="utf-8")
VARIABLES = {
    "FRX_RUN_ID",
    "FRX_JOB_NAME",
    "FRX_OUTPUT_DIR",
    "FRX_RAW_TRACE_PATH",
    "FRX_DERIVED_SUMMARY_PATH",
    "FRX_AUTO_PERSIST",
    "FRX_SAMPLE_INTERVAL_MS",
}
EVENTS = """
import json, os, time
with open(os.environ["FRX_RAW_TRACE_PATH"], "a") as file:
    for step in range(12):
        at = time.time_ns()
        for kind, duration in (("step_start", None), ("step_end", 1_000_000)):
            event = {"event_type": kind, "timestamp_ns": at, "pid": 1, "step_id": step, "payload": {}}
            file.write(json.dumps(event | ({"duration_ns": duration} if duration else {})) + "\\n")
            at += 1_000_000
        time.sleep(0.002)
"""
TRACE = json.dumps(
    {
        "traceEvents": [
            {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 10.0, "dur": 5.0, "args": {}}
        ]
    }
)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def python(program: str) -> list[str]:
    return ["--", sys.executable, "-I", "-S", "-c", program]


def bundle() -> Path:
    (folder,) = (path for path in Path("runs").iterdir() if path.is_dir())
    return folder


def told(name: str) -> Any:
    return json.loads((bundle() / name).read_bytes())


def test_a_run_becomes_a_bundle(capfd: pytest.CaptureFixture[str]) -> None:
    program = f"{EVENTS}\nimport sys; print('out'); print('err', file=sys.stderr)"
    assert run(["collect", "--sample-interval-ms", "10", *python(program)]) == 0
    shown = capfd.readouterr()
    name = bundle().name
    assert name.startswith("run-")
    assert len(name) == len("run-") + 12
    assert shown.err == "err\n"
    assert shown.out.splitlines()[:4] == [
        "out",
        "frx collect completed",
        f"Run bundle: runs/{name}",
        f"Zip bundle: runs/{name}.zip",
    ]
    files = [
        "metadata.json", "manifest.json", "run_config.yaml", "gpu_metrics.csv", "host_metrics.csv",
        "optional_logs.txt", "raw/trace.jsonl", "derived/summary.json",
    ]  # fmt: skip
    # Without a GPU, the file has no samples.
    captured = [line.removesuffix(" [no GPU]") for line in shown.out.splitlines()[4:13]]
    assert captured == ["Captured (8 files):", *(f"  {file}" for file in files)]
    gpus = json.loads((bundle() / "metadata.json").read_text())["host"]["gpus"]
    assert ("  gpu_metrics.csv [no GPU]\n" in shown.out) is (not gpus)
    assert sorted((bundle() / "optional_logs.txt").read_text().split()) == ["err", "out"]
    metadata = told("metadata.json")
    assert (metadata["state"], metadata["exit_code"], metadata["signal"]) == ("complete", 0, None)
    assert metadata["job_name"] == "frx-run"
    assert metadata["run_id"] == name
    assert metadata["duration_seconds"] > 0
    assert told("derived/summary.json")["step_count"] == 12
    assert len((bundle() / bundle_layout.HOST_METRICS).read_text().splitlines()) > 1
    manifest = told("manifest.json")
    assert manifest["limited_data"] is False
    assert {file["path"] for file in manifest["files"]} == {*files} - {"manifest.json"}
    for file in manifest["files"]:
        content = (bundle() / file["path"]).read_bytes()
        assert (file["bytes"], file["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
    with open_bundle(Path("runs", f"{name}.zip")) as opened:
        assert opened.name == name
    with zipfile.ZipFile(Path("runs", f"{name}.zip")) as archive:
        assert archive.namelist() == [f"{name}/{file}" for file in files]
    assert sorted(path.name for path in Path("runs").iterdir()) == [name, f"{name}.zip"]


def test_the_workload_has_the_variables_of_the_reference() -> None:
    program = "import json, os; print(json.dumps({k: v for k, v in os.environ.items() if k.startswith('FRX_')}))"
    assert run(["collect", "--run-id", "mine", "--name", "a job", "--sample-interval-ms", "250", *python(program)]) == 0
    said = json.loads((bundle() / "optional_logs.txt").read_text())
    folder = Path("runs/mine").absolute()
    assert {name: value for name, value in said.items() if name in VARIABLES} == {
        "FRX_RUN_ID": "mine",
        "FRX_JOB_NAME": "a job",
        "FRX_OUTPUT_DIR": str(folder),
        "FRX_RAW_TRACE_PATH": str(folder / "raw" / "trace.jsonl"),
        "FRX_DERIVED_SUMMARY_PATH": str(folder / "derived" / "summary.json"),
        "FRX_AUTO_PERSIST": "1",
        "FRX_SAMPLE_INTERVAL_MS": "250",
    }
    assert said.keys() - os.environ.keys() == VARIABLES


@pytest.mark.parametrize(
    ("program", "code", "words"),
    [
        ("raise SystemExit(3)", 3, "the program failed: exit code 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", 139, "the program was ended by SIGSEGV"),
        ("import os; os.kill(os.getpid(), 9)", 137, "the program was ended by SIGKILL"),
    ],
)
def test_its_exit_code_is_ours_and_nothing_is_lost(
    program: str, code: int, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["collect", *python(f"{EVENTS}\nprint('last words', flush=True)\n{program}")]) == code
    shown = capfd.readouterr().out
    assert f"frx collect: {words}\n" in shown
    assert f"RUN  {bundle().name}" in shown
    assert (bundle() / "optional_logs.txt").read_text() == "last words\n"
    assert told("derived/summary.json")["step_count"] == 12
    assert told("metadata.json")["state"] == "complete"


def test_a_program_that_fails_before_its_first_step_is_not_diagnosed(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["collect", "--run-id", "mine", "--", sys.executable, "missing.py"]) == 2
    assert capfd.readouterr().out.splitlines() == [
        "frx collect: the program failed: exit code 2",
        "No step was recorded, so there is no diagnosis: see its output in optional_logs.txt",
        "Run bundle: runs/mine",
        "Zip bundle: runs/mine.zip",
    ]
    assert "missing.py" in (bundle() / "optional_logs.txt").read_text()
    (why,) = (part["reason"] for part in told("derived/summary.json")["missing"] if part["subject"] == "program")
    assert why == "it failed: exit code 2"


def test_as_json(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["collect", "--json", "--no-zip", *python(f"{EVENTS}\nprint('out')")]) == 0
    shown = capfd.readouterr()
    assert shown.err == "out\n"
    document = json.loads(shown.out)
    jsonschema.Draft202012Validator.check_schema(json.loads(PUBLISHED))
    jsonschema.Draft202012Validator(json.loads(PUBLISHED)).validate(document)
    assert document["zip"] is None
    assert document["result"] == told("derived/summary.json")
    assert document["warnings"] == told("metadata.json")["warnings"]
    read = CollectDocument.model_validate_json(shown.out)
    assert to_json(read) == document


def test_the_run_is_explained_within_the_bundle(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["collect", "--explain", *python(EVENTS)]) == 0
    names = ["frx_summary.txt", "frx_llm_prompt.txt", "frx_evidence.json"]
    assert all((bundle() / name).stat().st_size for name in names)
    assert {file["path"] for file in told("manifest.json")["files"]} > set(names)
    with zipfile.ZipFile(f"{bundle()}.zip") as archive:
        assert archive.namelist()[-3:] == [f"{bundle().name}/{name}" for name in names]
    shown = capfd.readouterr().out
    # What was found is printed, too.
    assert f"RUN  {bundle().name}" in shown


def test_quiet_prints_what_the_workload_does(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["collect", "--quiet", *python("print('out')")]) == 0
    shown = capfd.readouterr()
    assert (shown.out, shown.err) == ("out\n", "")


class OneDevice:
    """A driver's library with one device, which tells how busy it is and nothing else."""

    NVMLError = RuntimeError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        known = {"nvmlDeviceGetCount": 1, "nvmlDeviceGetHandleByIndex": "it"}
        known["nvmlDeviceGetUtilizationRates"] = SimpleNamespace(gpu=40, memory=5)  # type: ignore[assignment]
        if name not in known:
            raise AttributeError(name)
        return lambda *_: known[name]


def test_devices_are_sampled(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sampling, "load_nvml", OneDevice)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert run(["collect", "--sample-interval-ms", "10", *python("import time; time.sleep(0.2)")]) == 0
    samples = read_device_samples(bundle() / bundle_layout.GPU_METRICS)
    assert len(samples) > 2
    assert {(sample.device, sample.busy_pct, sample.memory_used) for sample in samples} == {(0, 40, None)}
    assert collection.NO_GPU not in capfd.readouterr().out
    assert collection.NO_GPU not in told("manifest.json")["missing"]


def test_a_run_without_events_is_collected_too(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["collect", *python("pass")]) == 0
    manifest = told("manifest.json")
    assert manifest["limited_data"] is True
    assert collection.NO_EVENTS in manifest["missing"]
    assert collection.NO_PROFILE in manifest["missing"]


def test_an_analysis_that_fails_is_a_warning(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError("no steps")

    monkeypatch.setattr(collection, "analyze_files", fail)
    assert run(["collect", *python("raise SystemExit(4)")]) == 4
    assert "Warning: the run could not be analysed: ZeroDivisionError: no steps" in capfd.readouterr().out
    assert not (bundle() / "derived" / "summary.json").exists()
    assert any("ZeroDivisionError" in warning for warning in told("metadata.json")["warnings"])


def writes(*paths: str) -> list[str]:
    """A workload that writes a trace to each of these."""
    lines = [
        f"path = pathlib.Path({path!r}); path.parent.mkdir(parents=True, exist_ok=True); path.write_text({TRACE!r})"
        for path in paths
    ]
    return python("\n".join(["import pathlib", *lines]))


def test_traces_are_imported_from_the_usual_folder(capfd: pytest.CaptureFixture[str]) -> None:
    names = ["profiler_trace.json", "host_12.1700000000.pt.trace.json.gz", "sub/host_13.pt.trace.json", "notes.json"]
    assert run(["collect", *writes(*(f"frx-job-run/{name}" for name in names))]) == 0
    imported = {file["path"] for file in told("manifest.json")["files"] if file["imported"]}
    assert imported == {
        "profiler/profiler_trace.json",
        "profiler/host_12.1700000000.pt.trace.json.gz",
        "profiler/host_13.pt.trace.json",
    }
    shown = capfd.readouterr().out
    assert "  profiler/profiler_trace.json [imported]\n" in shown
    sources = {artifact["path"]: artifact["imported_from"] for artifact in told("metadata.json")["artifacts"]}
    assert sources["profiler/profiler_trace.json"] == str(Path("frx-job-run/profiler_trace.json").absolute())
    assert sources["run_config.yaml"] is None


def test_traces_beside_the_files_of_the_bundle_are_its_traces(capfd: pytest.CaptureFixture[str]) -> None:
    program = f"""
import os, pathlib
folder = pathlib.Path(os.environ["FRX_OUTPUT_DIR"])
for name in ("profiler/profiler_trace.json", "profiler_trace.json", "host_1.pt.trace.json", "link_trace.json"):
    if name.startswith("link"):
        (folder / name).symlink_to("/etc/hostname")
    else:
        (folder / name).write_text({TRACE!r})
"""
    assert run(["collect", "--no-profiler-import", *python(program)]) == 0
    names = ["profiler_trace-2.json", "profiler_trace.json", "host_1.pt.trace.json"]
    traces = [file for file in told("manifest.json")["files"] if file["path"].startswith("profiler/")]
    assert sorted(file["path"] for file in traces) == sorted(f"profiler/{name}" for name in names)
    assert not any(file["imported"] for file in traces)
    assert not any("torch.profiler" in missing for missing in told("manifest.json")["missing"])
    with open_bundle(Path(f"{bundle()}.zip")) as opened:
        assert sorted(path.name for path in opened.find_traces()) == sorted(names)


def test_non_utf8_arguments_and_file_names_are_accepted(capfd: pytest.CaptureFixture[str]) -> None:
    program = f"""
import os
folder = os.environb[b"FRX_OUTPUT_DIR"]
os.mkdir(b"art\\xff")
for path in (b"art\\xff/n\\xff_trace.json", folder + b"/profiler/\\xff\\x1b.json", folder + b"/\\xfe_trace.json"):
    with open(path, "w") as file:
        file.write({TRACE!r})
"""
    Path("config.yaml").write_text('half: "\\ud800"')
    arguments = ["--json", "--run-id", "odd", "--out", "runs\udcff", "--config", "config.yaml"]
    assert run(["collect", *arguments, "--artifact-dir", "art\udcff", *python(program), "\udcfe"]) == 0
    collected = json.loads(capfd.readouterr().out)
    assert collected["bundle"] == "runs\\udcff/odd"
    assert collected["result"]["sources"]
    assert json.loads(Path("runs\udcff/odd/metadata.json").read_text())["command"][-1] == "\\udcfe"
    with open_bundle(Path("runs\udcff/odd.zip")) as opened:
        assert [path.name for path in opened.find_traces()] == ["__.json", "__trace.json", "n__trace.json"]


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_lead_nowhere(closed: str) -> None:
    program = "cat; echo out; echo err >&2; exit 7"
    command = f"exec '{sys.executable}' -m frx_graph collect -- sh -c '{program}' {closed}"
    ran = subprocess.run(["sh", "-c", command], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120)
    assert ran.returncode == 7
    assert (bundle() / "optional_logs.txt").read_text().split() == ["out", "err"]
    assert "frx:" not in ran.stderr
    assert ("frx collect: the program failed: exit code 7" in ran.stdout) == (closed == "2>&-")


@pytest.mark.parametrize("redirection", [">/dev/full", "| head -c 0"])
def test_report_that_cannot_be_printed_leaves_the_exit_code(redirection: str) -> None:
    command = f"{{ '{sys.executable}' -m frx_graph collect -- sh -c 'exit 7'; echo $? >&2; }} {redirection}"
    ran = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=120)
    said = ["the report is not printed: No space left on device"] if "full" in redirection else []
    assert ran.stderr.splitlines() == [*said, "7"]
    assert told("metadata.json")["state"] == "complete"


@pytest.mark.parametrize("milliseconds", ["9", "86400001"])
def test_interval_out_of_range_is_refused(milliseconds: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["collect", "--sample-interval-ms", milliseconds, *python("")]) == 2
    assert "--sample-interval-ms" in capfd.readouterr().err
    assert not Path("runs").exists()


@pytest.mark.integration
def test_profiled_kernels_are_in_the_zip_at_the_path_in_their_event() -> None:
    program = """
import os, torch, frx_graph
with frx_graph.profile_kernels(output_dir=os.environ["FRX_OUTPUT_DIR"], steps=1):
    with frx_graph.step_context(0):
        torch.relu(torch.zeros(2))
"""
    assert run(["collect", "--", sys.executable, "-c", program]) == 0
    lines = (bundle() / "raw" / "trace.jsonl").read_text().splitlines()
    (window,) = (event for event in map(json.loads, lines) if event["event_type"] == "profiler_window")
    with open_bundle(Path(f"{bundle()}.zip")) as opened:
        assert [path.relative_to(opened.root).as_posix() for path in opened.find_traces()] == [
            window["payload"]["trace"]
        ]


def test_folders_may_be_named_and_names_may_meet() -> None:
    arguments = ["--artifact-dir", "a", "--artifact-dir", "b", "--artifact-dir", "none"]
    assert run(["collect", *arguments, *writes("a/trace.json", "b/trace.json", "frx-job-run/trace.json")]) == 0
    assert sorted(path.name for path in (bundle() / "profiler").iterdir()) == ["trace-2.json", "trace.json"]
    assert "there is no --artifact-dir none" in told("metadata.json")["warnings"]


def test_no_profiler_import_imports_nothing() -> None:
    assert run(["collect", "--no-profiler-import", *writes("frx-job-run/profiler_trace.json")]) == 0
    assert list((bundle() / "profiler").iterdir()) == []


def test_traces_of_another_run_and_links_are_not_imported(tmp_path: Path) -> None:
    folder = Path("frx-job-run")
    folder.mkdir()
    (folder / "old_trace.json").write_text(TRACE)
    os.utime(folder / "old_trace.json", (time.time() - 60, time.time() - 60))
    (tmp_path / "secret").write_text("secret")
    (folder / "link_trace.json").symlink_to(tmp_path / "secret")
    os.mkfifo(folder / "pipe_trace.json")
    (folder / "loop").symlink_to(folder.absolute())
    assert run(["collect", *writes("frx-job-run/new\x1b_trace.json")]) == 0
    assert [path.name for path in (bundle() / "profiler").iterdir()] == ["new__trace.json"]
    assert "1 older trace not imported: written before the run" in told("metadata.json")["warnings"]
    with open_bundle(Path(f"{bundle()}.zip")) as opened:
        assert len(opened.find_traces()) == 1


def test_traces_have_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imported_artifacts, "MOST_IMPORTED", len(TRACE))
    assert run(["collect", *writes("frx-job-run/a_trace.json", "frx-job-run/b_trace.json")]) == 0
    assert [path.name for path in (bundle() / "profiler").iterdir()] == ["a_trace.json"]
    assert any("b_trace.json is not imported" in warning for warning in told("metadata.json")["warnings"])


def test_what_else_the_workload_puts_there_is_not_of_the_bundle() -> None:
    program = (
        "import os, pathlib; folder = pathlib.Path(os.environ['FRX_OUTPUT_DIR'])\n"
        "(folder / 'checkpoint.pt').write_bytes(bytes(10)); (folder / 'raw' / 'link').symlink_to('/etc/passwd')"
    )
    assert run(["collect", *python(program)]) == 0
    assert (bundle() / "checkpoint.pt").exists()
    with zipfile.ZipFile(f"{bundle()}.zip") as archive:
        assert not any("checkpoint" in name or "link" in name for name in archive.namelist())


def test_a_workload_that_removes_its_bundle_is_collected_as_far_as_it_goes(capfd: pytest.CaptureFixture[str]) -> None:
    program = "import os, shutil; shutil.rmtree(os.environ['FRX_OUTPUT_DIR']); raise SystemExit(5)"
    assert run(["collect", *python(program)]) == 5
    assert "Warning: the metadata are not up to date" in capfd.readouterr().out


def test_a_log_of_one_line_over_and_over_can_be_opened_again() -> None:
    assert run(["collect", *python("print('loss nan\\n' * 1_000_000)")]) == 0
    with zipfile.ZipFile(f"{bundle()}.zip") as archive:
        methods = {Path(member.filename).name: member.compress_type for member in archive.infolist()}
    assert methods["optional_logs.txt"] == zipfile.ZIP_STORED
    assert methods["metadata.json"] == zipfile.ZIP_DEFLATED
    with open_bundle(Path(f"{bundle()}.zip")):
        pass


def test_a_bundle_that_is_too_large_has_no_zip(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle_writing, "MOST_BYTES", 100)
    assert run(["collect", *python("pass")]) == 0
    assert "Warning: there is no zip: OSError: its files have more than 0 GiB" in capfd.readouterr().out
    assert [path.suffix for path in Path("runs").iterdir()] == [""]


def test_a_bundle_of_too_many_files_has_no_zip(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle_writing, "MOST_MEMBERS", 6)
    assert run(["collect", *python("pass")]) == 0
    assert "Warning: there is no zip: OSError: the bundle has more than 6 files" in capfd.readouterr().out
    assert [path.suffix for path in Path("runs").iterdir()] == [""]


def test_configuration_is_merged(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("collector: {job_name: theirs}\nmodel: {layers: 3}\n")
    assert run(["collect", "--config", "mine.yaml", *python("pass")]) == 0
    config = yaml.safe_load((bundle() / "run_config.yaml").read_text())
    assert config["collector"]["job_name"] == "theirs"
    assert config["collector"]["sample_interval_ms"] == 1000
    assert config["model"] == {"layers": 3}
    assert config["environment"]["processors"] == os.cpu_count()


@pytest.mark.parametrize(
    "content",
    [b"a: [", b"- 1", b"\xff", b"a: !!python/object/apply:os.system ['id']", b"[" * 1000, b"a: 2020-99-99", b"\0"],
)
def test_a_configuration_that_is_none_is_refused(
    content: bytes, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_bytes(content)
    refused(capfd, ["--config", "mine.yaml", *python("pass")], "--config mine.yaml")


def test_configuration_that_is_not_a_file_or_too_long_is_refused(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo.yaml")
    refused(capfd, ["--config", "fifo.yaml", *python("pass")], "not a regular file")
    Path("long.yaml").write_text("a: " + "b" * 2**20)
    refused(capfd, ["--config", "long.yaml", *python("pass")], "more than 1 MiB")


def refused(capfd: pytest.CaptureFixture[str], arguments: list[str], why: str) -> None:
    """With one line, exit code 2, and no folder."""
    assert run(["collect", *arguments]) == 2
    shown = capfd.readouterr()
    assert shown.out == ""
    (line,) = shown.err.splitlines()
    assert line.startswith("frx: ")
    assert why in line
    assert not Path("runs").exists() or not list(Path("runs").iterdir())


@pytest.mark.parametrize("name", ["../x", "a/b", "/etc", "", ".", "..", ".hidden", "-x", "a\nb", "\x1b[31m", "x" * 101])
def test_run_id_that_is_not_a_valid_folder_name_is_refused(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    refused(capfd, [f"--run-id={name}", *python("pass")], "cannot be the name of a run")
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "there is no program to run"),
        (["--", "no-such-program"], "no-such-program is not a program"),
        (["--name", "", "--", "true"], "is not a name"),
        (["--name", "a\nb", "--", "true"], "is not a name"),
        (["--sample-interval-ms", "0", "--", "true"], "--sample-interval-ms"),
        (["--config", "none.yaml", "--", "true"], "No such file"),
        (["--out", "/proc/runs", "--", "true"], "choose another --out"),
        (["--out", "/dev/null", "--", "true"], "choose another --out"),
    ],
)
def test_impossible_options_are_refused_before_anything_runs(
    arguments: list[str], why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    refused(capfd, arguments, why)


def test_a_program_that_is_none_leaves_no_folder(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken").write_text("#!/no/such/interpreter\n")
    (tmp_path / "broken").chmod(0o755)
    refused(capfd, ["--", "./broken"], "./broken cannot be started: No such file or directory")


@pytest.mark.parametrize("there", ["runs/mine", "runs/mine.zip"])
def test_a_run_that_is_there_is_not_replaced(there: str, capfd: pytest.CaptureFixture[str]) -> None:
    Path(there).mkdir(parents=True)
    assert run(["collect", "--run-id", "mine", *python("open('ran', 'w')")]) == 2
    assert f"{there} exists already" in capfd.readouterr().err
    assert not Path("ran").exists()
    assert list(Path("runs").iterdir()) == [Path(there)]


def test_hostile_names_do_not_reach_the_terminal() -> None:
    document = CollectDocument(
        run_id="r", job_name="j", bundle="runs/\x1b[31mr", zip=None, exit_code=0, signal=None, duration_seconds=1,
        files=({"path": "profiler/\x1b]0;x\x07.json", "bytes": 1, "imported_from": "x"},),  # type: ignore[arg-type]
        warnings=("a\nb\x1b[0m",), result=None,
    )  # fmt: skip
    text = render_collected(document)
    assert all(line.isprintable() for line in text.splitlines())
    assert len(text.splitlines()) == 5


WAITS = "for _ in range(600): time.sleep(0.1)"
"""Not one long sleep: Python runs a handler between two instructions, so that a signal which comes in the microseconds
between the last check and the system call waits until the sleep ends."""


@pytest.fixture
def collecting(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Starts `frx collect` in a process of its own, and waits until the workload says that it is ready."""
    started = []

    def start(program: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "frx_graph", "collect", *python(program)],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                "PYTHONFAULTHANDLER": "1",
            },
            start_new_session=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], 60)[0]
        assert process.stdout.readline() == b"ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes, str]:
    """What it has written, and, of one that takes long, what its processes did meanwhile: that is all that is known of
    a failure that happens once in many runs."""
    seen = ""
    for seconds in (15, 285):
        with contextlib.suppress(subprocess.TimeoutExpired):
            return (*process.communicate(timeout=seconds), seen)
        seen += f"after {seconds} s more:\n" + "".join(map(process_state, family(process.pid)))
    process.send_signal(signal.SIGABRT)
    err = process.communicate()[1]
    pytest.fail(f"it does not end\n{seen}\n{err.decode()}")


def family(number: int) -> list[psutil.Process]:
    try:
        leader = psutil.Process(number)
        return [leader, *leader.children(recursive=True)]
    except psutil.Error:
        return []


def process_state(process: psutil.Process) -> str:
    """proc(5): whether it stands, and what signals it blocks, ignores, handles and still has to get."""
    told = ("Name", "State", "SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt")
    try:
        lines = Path(f"/proc/{process.pid}/status").read_text(errors="replace").splitlines()
    except OSError:
        return f"{process.pid}: gone\n"
    return f"{process.pid}: {'; '.join(line for line in lines if line.startswith(told))}\n"


@pytest.mark.integration
def test_ctrl_c_ends_the_workload_and_the_bundle_is_whole(
    collecting: Callable[[str], subprocess.Popen[bytes]],
) -> None:
    process = collecting(f"{EVENTS}\nprint('ready', flush=True)\n{WAITS}")
    os.killpg(process.pid, signal.SIGINT)
    out, err, seen = ended(process)
    assert process.returncode == 130, seen
    assert b"frx collect: the program was ended by SIGINT" in out
    assert b"KeyboardInterrupt" in err
    assert told("metadata.json")["signal"] == signal.SIGINT
    assert told("metadata.json")["state"] == "complete"
    assert told("derived/summary.json")["step_count"] == 12


@pytest.mark.integration
def test_a_workload_that_saves_its_work_on_sigterm_has_the_time(
    collecting: Callable[[str], subprocess.Popen[bytes]],
) -> None:
    program = (
        "import os, signal, sys, time\n"
        # Not `print`, which may be at work when the signal comes.
        "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), os.write(1, b'saved\\n'), sys.exit(7)))\n"
        f"print('ready', flush=True)\n{WAITS}"
    )
    process = collecting(program)
    process.terminate()
    _, err, seen = ended(process)
    assert process.returncode == 7, (seen, err, told("metadata.json"))
    assert (bundle() / "optional_logs.txt").read_text() == "ready\nsaved\n"
    assert told("metadata.json")["exit_code"] == 7
