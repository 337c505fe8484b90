"""What ncu says beside its table, in its own words as people have met them, and how it is started and ended."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frx_graph.errors import EvidenceError
from frx_graph.evidence.ncu import profiler
from frx_graph.evidence.ncu.profiler import NcuLog, explain_failure, read_log, run_ncu

CONNECTED = "==PROF== Connected to process 55916 (/usr/bin/python3.11)\n"
TABLE = '"ID","Process ID","Kernel Name"\n"","",""\n"0","1","k"\n'
SHUT_DOWN = (
    '==ERROR== Failed to profile "k" in process 1\n==PROF== Trying to shutdown target application\n'
    "==ERROR== The application returned an error code (9).\n==ERROR== An error occurred while trying to profile.\n"
)


def said(tmp_path: Path, text: str, code: int = 0, kernel: str | None = None) -> str | None:
    path = tmp_path / "log"
    path.write_text(text)
    found = explain_failure(read_log(path), code, kernel)
    return None if found is None else str(found)


def test_all_is_well(tmp_path: Path) -> None:
    text = f'{CONNECTED}==PROF== Profiling "k" - 0: 0%....50%....100% - 9 passes\n==PROF== Disconnected\n{TABLE}'
    assert said(tmp_path, text) is None
    assert read_log(tmp_path / "log").table


@pytest.mark.parametrize(
    ("text", "code", "expected"),
    [
        (
            f"{CONNECTED}==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n==WARNING== No kernels were "
            "profiled.\n",
            1,
            "NVreg_RestrictProfilingToAdminUsers=0",
        ),
        (
            f"{CONNECTED}==ERROR== An error was reported by the driver:\n==ERROR== Profiling failed because a driver "
            f"resource was unavailable. Ensure that no other tool (like DCGM)\n{SHUT_DOWN}",
            9,
            "in use by another tool (if it is DCGM",
        ),
        (f"{CONNECTED}==ERROR== Unknown Error on device 0.\n{SHUT_DOWN}", 9, "ncu: Unknown Error on device 0.; Failed"),
        (
            "==ERROR== Failed to find metric regex:^flop_count_sp\\.(sum|min|max|avg|pct|ratio|max_rate)$\n",
            1,
            "ncu knows no metric flop_count_sp",
        ),
        (
            "==ERROR== The application returned an error code (1).\n==WARNING== No kernels were profiled.\n",
            1,
            "ncu could not attach to the program, whose exit code is 1",
        ),
        (f"{CONNECTED}==ERROR== The application returned an error code (139).\n{TABLE}", 139, "exit code 139"),
        ("==WARNING== No kernels were profiled.\n", 0, "does the program run on the GPU?"),
        (
            "==WARNING== No kernels were profiled.\nAvailable Kernels:\n1. stats(const __half *, float *)\n2. b\n",
            0,
            "these options leave nothing of stats(const __half *, float *), b",
        ),
        ("", 0, "no kernels were profiled"),
        ("", 1, "ncu ended with exit code 1, and does not say why"),
        (TABLE, -11, "ncu was ended by signal 11"),
    ],
)
def test_profiler_errors_are_explained(tmp_path: Path, text: str, code: int, expected: str) -> None:
    found = said(tmp_path, text, code)
    assert found is not None
    assert expected in found


def test_a_filter_that_matches_nothing_is_named(tmp_path: Path) -> None:
    nothing = "==WARNING== No kernels were profiled.\n"
    assert "--kernel-name gemm matches none (" in str(said(tmp_path, nothing, kernel="gemm"))
    many = nothing + "Available Kernels:\n" + "".join(f"{number}. k{number}\n" for number in range(1, 50))
    assert "--kernel-name gemm matches none of k1, k2, k3, k4, k5, ... (" in str(said(tmp_path, many, kernel="gemm"))


def test_without_a_log_nothing_is_known(tmp_path: Path) -> None:
    assert read_log(tmp_path / "none") == NcuLog(False, False, (), None, False, ())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pieces=st.lists(
        st.sampled_from(
            [
                b"==ERROR==",
                b"==",
                b'"ID"',
                b"\n",
                b"\0",
                b"\xff\xfe",
                b"Available Kernels:\n",
                b"1. ",
                b"No kernels were",
            ]
        )
        | st.binary(max_size=8)
    ),
    code=st.integers(-20, 255),
)
def test_whatever_is_in_a_log_it_is_one_error_or_none(tmp_path: Path, pieces: list[bytes], code: int) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"".join(pieces))
    log = read_log(path)
    found = explain_failure(log, code, None)
    assert found is not None or (log.table and code == 0)


def test_the_exit_code_is_that_of_ncu(capfd: pytest.CaptureFixture[str]) -> None:
    program = [sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(5)"]
    assert run_ncu(program) == 5
    assert capfd.readouterr() == ("out\n", "err\n")
    assert run_ncu(program, output=2) == 5
    assert capfd.readouterr().out == ""


def test_program_that_cannot_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="cannot be started: Permission denied"):
        run_ncu([str(tmp_path)])


def test_interrupt_ends_the_whole_group_even_if_it_ignores_sigint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiler, "_GRACE_SECONDS", 0.05)
    ready = tmp_path / "ready"
    deaf = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN)"
    child = f"{deaf}; open({str(ready)!r}, 'w').write('x'); time.sleep(600)"
    program = f"{deaf}; import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}]).wait()"

    def interrupt() -> None:
        while not ready.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    with pytest.raises(KeyboardInterrupt):
        run_ncu([sys.executable, "-c", program])
    left = [process for process in psutil.process_iter(["cmdline"]) if str(ready) in str(process.info["cmdline"])]
    psutil.wait_procs(left, timeout=10)
    assert not any(process.is_running() and process.status() != "zombie" for process in left)
    assert {process.pid for process in psutil.Process().children(recursive=True)} <= before
