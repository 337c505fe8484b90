"""Workloads, really run: what comes through, how they end, and that nothing of them is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from frx_graph.runs.workload.workload import REDACTED, WorkloadError, redact_secrets, run_workload
from frx_graph.runs.workload.workload_output import WorkloadLog

RUNS_IT = (
    "import sys; from pathlib import Path; from frx_graph.runs.workload.workload import run_workload\n"
    "end = run_workload(sys.argv[2:], log=Path(sys.argv[1]), patience_seconds=0.5)\n"
    "print(end.exit_code, end.signal, file=sys.stderr)\n"
    "sys.exit(end.shell_code)"
)
READY = "echo ready; "
FOREVER = "while :; do sleep 0.05; done"
SECONDS = 30.0


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline, "it does not come to hold"
        time.sleep(0.01)


def marked(mark: str) -> list[psutil.Process]:
    """Processes that run and have it among their arguments."""
    found = []
    for process in psutil.process_iter():
        try:
            if mark in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log.txt"


@pytest.fixture
def runner(log: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a process that runs a shell script as a workload, and waits until it says that it is ready."""
    started = []

    def start(script: str, *more: str, mark: str = "") -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", RUNS_IT, str(log), "sh", "-c", READY + script, "sh", mark, *more]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_output_is_passed_on_and_kept_byte_by_byte(log: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = "import os; os.write(1, bytes(range(256)) * 1000); os.write(2, b'\\xff\\x00err')"
    out, err = os.pipe(), os.pipe()
    kept = []
    for read, _ in (out, err):
        os.set_blocking(read, False)
    # More than a pipe holds: somebody reads on.
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as cat:
        assert cat.stdin is not None
        assert cat.stdout is not None
        end = run_workload(
            [sys.executable, "-c", script.replace("1000", "200")], log=log, stdout=cat.stdin.fileno(), stderr=err[1]
        )
        cat.stdin.close()
        kept = [cat.stdout.read(), os.read(err[0], 100)]
    for descriptor in (*out, *err):
        os.close(descriptor)
    assert (end.exit_code, end.signal, end.log_problem) == (0, None, None)
    assert kept == [bytes(range(256)) * 200, b"\xff\x00err"]
    assert sorted(log.read_bytes()) == sorted(b"".join(kept))


def test_output_comes_at_once(runner: Callable[..., subprocess.Popen[bytes]], log: Path, tmp_path: Path) -> None:
    go = tmp_path / "go"
    process = runner(f"printf part; while ! [ -e {go} ]; do sleep 0.01; done; printf ' two'")
    assert process.stdout is not None
    assert process.stdout.read(4) == b"part"
    assert log.read_bytes() == b"ready\npart"
    go.touch()
    assert process.stdout.read() == b" two"


@pytest.mark.parametrize(
    ("script", "code", "number", "shell"),
    [("exit 0", 0, None, 0), ("exit 3", 3, None, 3), ("kill -SEGV $$", None, 11, 139), ("kill -9 $$", None, 9, 137)],
)
def test_how_it_ended(log: Path, script: str, code: int | None, number: int | None, shell: int) -> None:
    end = run_workload(["sh", "-c", script], log=log)
    assert (end.exit_code, end.signal, end.shell_code) == (code, number, shell)
    assert end.seconds > 0


@pytest.mark.parametrize(
    ("command", "why"),
    [("no-such-program", "No such file"), ("/etc/passwd", "Permission denied"), ("a\0b", "embedded null byte")],
)
def test_program_that_cannot_start_is_reported(log: Path, command: str, why: str) -> None:
    with pytest.raises(WorkloadError, match=why) as caught:
        run_workload([command], log=log)
    assert "\n" not in str(caught.value)


def test_unwritable_log_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="cannot be written"):
        run_workload(["touch", str(tmp_path / "ran")], log=tmp_path / "none" / "log")
    assert not (tmp_path / "ran").exists()


def test_the_workload_has_the_environment_that_it_is_given_and_standard_input(log: Path) -> None:
    run_workload(["sh", "-c", "cat; echo $FRX_RUN_ID"], log=log, environment={**os.environ, "FRX_RUN_ID": "run-1"})
    assert log.read_text() == "run-1\n"


def test_python_is_the_workloads_own(log: Path) -> None:
    """Nothing of how the guard is started, without site packages and environment, is handed on."""
    script = (
        "import sys, signal; print(sys.flags.isolated, sys.flags.no_site, signal.getsignal(signal.SIGINT).__name__)"
    )
    run_workload([sys.executable, "-c", script], log=log)
    assert log.read_text() == "0 0 default_int_handler\n"
    run_workload(["sh", "-c", "(yes; echo $? >&2) | head -n 1"], log=log)
    assert sorted(log.read_text().split()) == ["141", "y"]
    run_workload([sys.executable, "-c", "import os; print(os.listdir('/proc/self/fd'))"], log=log)
    # The fourth lists them.
    assert log.read_text() == "['0', '1', '2', '3']\n"


@pytest.mark.parametrize("how", ["sh -c '{loop}' sh {mark} &", "setsid sh -c '{loop}' sh {mark} &"])
def test_leftover_processes_are_ended_and_not_waited_for(log: Path, how: str, tmp_path: Path) -> None:
    mark = f"mark-{tmp_path.name}-{os.getpid()}"
    script = how.format(loop=f'trap "" TERM; {FOREVER}', mark=mark)
    end = run_workload(["sh", "-c", f"{script} echo done"], log=log)
    # Waiting for it would never end.
    assert end.exit_code == 0
    assert log.read_text() == "done\n"
    assert marked(mark) == []


def test_a_flood_is_passed_on_in_little_memory(log: Path) -> None:
    program = (
        "import resource, sys; from pathlib import Path; from frx_graph.runs.workload.workload import run_workload\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "run_workload(['head', '-c', '50000000', '/dev/zero'], log=Path(sys.argv[1]))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", program, str(log)], capture_output=True, check=True)
    assert len(ran.stdout) == log.stat().st_size == 50_000_000
    assert int(ran.stderr) < 4 << 10, "KiB"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_passed_on(runner: Callable[..., subprocess.Popen[bytes]], number: signal.Signals) -> None:
    process = runner(f"trap 'echo got; exit 4' {number.name[3:]}; echo set; {FOREVER}")
    assert process.stdout is not None
    assert process.stdout.readline() == b"set\n"
    process.send_signal(number)
    assert process.stdout.read() == b"got\n"
    assert process.wait(SECONDS) == 4


def test_the_whole_group_gets_it(runner: Callable[..., subprocess.Popen[bytes]], log: Path) -> None:
    process = runner(f"trap : INT; sh -c 'trap \"echo inner; exit\" INT; echo set; {FOREVER}'; echo outer")
    assert process.stdout is not None
    assert process.stdout.readline() == b"set\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.read() == b"inner\nouter\n"


def test_a_second_ctrl_c_kills(runner: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = runner(f"trap 'echo no' INT TERM; echo set; {FOREVER}")
    assert process.stdout is not None
    assert process.stdout.readline() == b"set\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == b"no\n"
    # At once it would be the first one again.
    process.send_signal(signal.SIGINT)
    time.sleep(0.6)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(SECONDS) == 137


def test_workload_that_ignores_sigterm_is_killed_after_the_grace_period(
    runner: Callable[..., subprocess.Popen[bytes]],
) -> None:
    process = runner(f"trap '' TERM; echo set; {FOREVER}")
    assert process.stdout is not None
    assert process.stdout.readline() == b"set\n"
    process.terminate()
    assert process.wait(SECONDS) == 137


@pytest.mark.parametrize("group", [False, True])
def test_the_workload_of_a_runner_that_is_killed_is_ended(
    runner: Callable[..., subprocess.Popen[bytes]], tmp_path: Path, group: bool
) -> None:
    mark = f"mark-{tmp_path.name}-{os.getpid()}"
    child = f"setsid sh -c 'trap \"\" TERM; {FOREVER}' sh {mark} & trap '' TERM; echo set; {FOREVER}"
    process = runner(child, mark=mark)
    assert process.stdout is not None
    assert process.stdout.readline() == b"set\n"
    assert len(marked(mark)) >= 3
    if group:
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()
    until(lambda: not marked(mark))


def test_a_workload_whose_guard_is_killed_is_ended(
    runner: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    mark = f"mark-{tmp_path.name}-{os.getpid()}"
    process = runner(FOREVER, mark=mark)
    (guard,) = psutil.Process(process.pid).children()
    guard.kill()
    assert process.wait(SECONDS) == 137
    until(lambda: not marked(mark))


def test_workload_survives_a_closed_stdout(log: Path) -> None:
    """As with `| head`: the workload goes on, and its log is whole."""
    read, write = os.pipe()
    os.close(read)
    end = run_workload(["sh", "-c", "echo one; echo two; exit 5"], log=log, stdout=write)
    os.close(write)
    assert end.exit_code == 5
    assert log.read_text() == "one\ntwo\n"


def test_a_log_keeps_the_beginning_and_the_end(tmp_path: Path) -> None:
    log = WorkloadLog(tmp_path / "log", most=10, most_tail=4)
    for number in range(10):
        log.write(b"%d%d%d\n" % (number, number, number))
    log.close()
    assert (tmp_path / "log").read_bytes() == (b"000\n111\n22\n[frx: 26 bytes of output are left out here]\n999\n")
    assert log.problem == "the log omits 26 bytes of the workload's output"


def test_a_log_that_is_not_too_large_is_whole(tmp_path: Path) -> None:
    log = WorkloadLog(tmp_path / "log", most=10, most_tail=4)
    log.write(b"0123456789abcd")
    log.close()
    assert (tmp_path / "log").read_bytes() == b"0123456789abcd"
    assert log.problem is None


def test_full_disk_is_reported(tmp_path: Path) -> None:
    log = WorkloadLog(Path("/dev/full"))
    log.write(b"x")
    log.write(b"y")
    log.close()
    assert log.problem == "the workload's output is not kept from some point on: No space left on device"


def test_secrets_on_the_command_line_are_not_kept() -> None:
    command = ["train.py", "--api-key", "k1", "--hf_token=k2", "WANDB_API_KEY=k3", "--password", "--lr", "0.1"]
    assert redact_secrets(command) == (
        "train.py", "--api-key", REDACTED, f"--hf_token={REDACTED}", f"WANDB_API_KEY={REDACTED}", "--password",
        "--lr", "0.1",
    )  # fmt: skip


@pytest.mark.parametrize(
    "command",
    [
        ("--tokenizer", "gpt2"), ("--max-tokens", "512"), ("tokens_per_batch=4096",), ("--monkey", "x"),
        ("--secretary=me",), ("https://example.org/a@b",),
    ],
)  # fmt: skip
def test_non_secrets_are_not_redacted(command: tuple[str, ...]) -> None:
    assert redact_secrets(command) == command


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (("--wandb_key", "k"), ("--wandb_key", REDACTED)),
        (("--auth", "k"), ("--auth", REDACTED)),
        (("--apiKey=k",), (f"--apiKey={REDACTED}",)),
        (("AWS_SECRET_ACCESS_KEY=k",), (f"AWS_SECRET_ACCESS_KEY={REDACTED}",)),
        (("https://me:pw@example.org/x",), (f"https://{REDACTED}@example.org/x",)),
        (("--url=postgresql://me:pw@host/db",), (f"--url=postgresql://{REDACTED}@host/db",)),
    ],
)
def test_secrets_in_many_forms(command: tuple[str, ...], shown: tuple[str, ...]) -> None:
    assert redact_secrets(command) == shown
