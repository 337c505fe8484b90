import contextlib
import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from frx_graph.measure.console_capture import STDERR, STDOUT, capture_output, load_c_library, redirect_output

NEVER_OPEN = 2**30
"""More than any limit of open files."""


def kept(line: str) -> str:
    return line if line.startswith("foreign") else ""


@contextlib.contextmanager
def standard_output_in(path: Path):
    """Point file descriptor 1 at a file, as a shell would."""
    before = os.dup(STDOUT)
    with path.open("wb") as file:
        os.dup2(file.fileno(), STDOUT)
    try:
        yield
    finally:
        load_c_library().fflush(None)
        os.dup2(before, STDOUT)
        os.close(before)


def test_c_and_python_are_captured_in_order_and_strangers_get_theirs_back(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with standard_output_in(path):
        os.write(STDOUT, b"before\n")
        with capture_output(STDOUT, kept) as log:
            load_c_library().puts(b"ours 1")
            load_c_library().puts(b"foreign")
            load_c_library().puts(b"ours 2")
        os.write(STDOUT, b"after\n")
    assert log.text == "ours 1\nforeign\nours 2\n"
    assert path.read_text() == "before\nforeign\nafter\n"


def test_the_descriptor_is_restored_after_an_exception(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with standard_output_in(path):
        with pytest.raises(KeyError), capture_output(STDOUT, kept):
            load_c_library().puts(b"foreign, then trouble")
            raise KeyError
        os.write(STDOUT, b"after\n")
    assert path.read_text() == "foreign, then trouble\nafter\n"


def test_a_closed_descriptor(tmp_path: Path) -> None:
    with standard_output_in(tmp_path / "out"):
        os.close(STDOUT)
        with capture_output(STDOUT, kept) as log:
            load_c_library().puts(b"ours")
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(STDOUT)
    assert log.text == "ours\n"


def test_a_replaced_sys_stdout_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with capture_output(STDOUT, kept) as log:
        print("goes to the replacement")
        load_c_library().puts(b"ours")
    assert log.text == "ours\n"
    assert capsys.readouterr().out == "goes to the replacement\n"


def test_no_standard_streams_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    with capture_output(STDOUT, kept) as log:
        load_c_library().puts(b"ours")
    assert log.text == "ours\n"


def test_non_utf8_bytes_are_captured() -> None:
    with capture_output(STDOUT, kept) as log:
        os.write(STDOUT, b"\xff\xfe ours\n")
    assert log.text.endswith(" ours\n")


def test_the_c_library_is_the_one_of_this_process() -> None:
    assert isinstance(load_c_library(), ctypes.CDLL)
    assert load_c_library().getpid() == os.getpid()


def test_a_redirected_descriptor_takes_c_and_child_processes_along(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out"
    with standard_output_in(path):
        os.write(STDOUT, b"before\n")
        with redirect_output(STDOUT, STDERR):
            load_c_library().puts(b"from C")
            subprocess.run(["echo", "from a child"], check=True)
            with capture_output(STDOUT, kept) as log:
                load_c_library().puts(b"ours")
                load_c_library().puts(b"foreign")
        os.write(STDOUT, b"after\n")
    assert log.text == "ours\nforeign\n"
    assert path.read_text() == "before\nafter\n"
    assert sorted(capfd.readouterr().err.splitlines()) == ["foreign", "from C", "from a child"]


def test_a_redirected_descriptor_that_was_closed_is_closed_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with standard_output_in(tmp_path / "out"):
        os.close(STDOUT)
        with redirect_output(STDOUT, STDERR):
            os.write(STDOUT, b"heard\n")
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(STDOUT)
    assert capfd.readouterr().err == "heard\n"


def test_redirected_to_a_closed_descriptor_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with standard_output_in(path):
        with redirect_output(STDOUT, NEVER_OPEN):
            os.write(STDOUT, b"unheard\n")
        os.write(STDOUT, b"after\n")
    assert path.read_text() == "after\n"
