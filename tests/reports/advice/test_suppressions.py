from __future__ import annotations

import dataclasses
import linecache
import os

import pytest

from frx_graph.capture.call_site import CallSite
from frx_graph.reports.advice import suppressions
from frx_graph.reports.advice.suppressions import apply_suppressions, read_source


def _at(advice, file, line):
    finding = dataclasses.replace(advice.findings[1], site=CallSite(str(file), line, "forward"))
    return dataclasses.replace(advice, findings=(finding,))


def _kept(advice, source, line=2):
    return bool(apply_suppressions(_at(advice, "net.py", line), lambda _file: source.splitlines(True)).findings)


@pytest.mark.parametrize(
    "source",
    [
        "a\nx.contiguous()  # frx: ignore\n",
        "a\nx.contiguous()  # frx: ignore[FRX002]\n",
        "a\nx.contiguous()  #frx:ignore[ FRX001 , frx002 ] because\n",
        "a\nx.contiguous()  # type: ignore  # frx: ignore[FRX002]\n",
        "  # frx: ignore[FRX002]\nx.contiguous()\n",
        "# frx: ignore\nx.contiguous()",
    ],
)
def test_comment_suppresses(advice, source):
    assert not _kept(advice, source)


@pytest.mark.parametrize(
    "source",
    [
        "a\nx.contiguous()\n",
        "a\nx.contiguous()  # frx: ignore[FRX001]\n",
        "a\nx.contiguous()  # frx: ignore[]\n",
        "a\nx.contiguous()  # frx: ignored\n",
        "a\nx.contiguous()  # frx ignore\n",
        "y.contiguous()  # frx: ignore\nx.contiguous()\n",
        "a\nx.contiguous()\n# frx: ignore\n",
        "",
    ],
)
def test_near_misses_do_not(advice, source):
    assert _kept(advice, source)


def test_suppressed_findings_are_counted(advice):
    less = apply_suppressions(_at(advice, "net.py", 1), lambda _file: ["x  # frx: ignore"])
    assert less.refusals[-1].subject == "1 finding"


def test_real_file(advice, tmp_path):
    file = tmp_path / "net.py"
    file.write_text("x = 1\ny = x  # frx: ignore[FRX002]\n")
    assert not apply_suppressions(_at(advice, file, 2)).findings
    file.write_text("x = 1\ny = x                         \n")
    assert apply_suppressions(_at(advice, file, 2)).findings


@pytest.mark.parametrize("line", [0, -1, 99])
def test_lines_outside_the_file(advice, tmp_path, line):
    file = tmp_path / "net.py"
    file.write_text("# frx: ignore\nx = 1\n")
    assert apply_suppressions(_at(advice, file, line)).findings


def test_only_regular_readable_source_is_read(tmp_path, monkeypatch):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    binary = tmp_path / "binary.py"
    binary.write_bytes(b"\xff\xfe\x00 # frx: ignore")
    large = tmp_path / "large.py"
    large.write_text("x = 1\n" * 10)
    monkeypatch.setattr(suppressions, "MAX_SOURCE_BYTES", 20)
    for file in (pipe, tmp_path, large, binary, tmp_path / "none.py", "/dev/zero", "\0", "<unknown>", "x" * 10_000):
        assert list(read_source(str(file))) == []


def test_notebook_cell():
    name = "<ipython-input-1>"
    linecache.cache[name] = (10, None, ["x  # frx: ignore\n"], name)
    try:
        assert read_source(name) == ["x  # frx: ignore\n"]
    finally:
        del linecache.cache[name]
