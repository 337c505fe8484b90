"""Lines that come through a pipe in pieces, and the end of an output of any length."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from frx_graph.support.supervisor.lines import LineReader, LineTooLongError, OutputTail


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    os.close(read)


def test_lines_come_whole_and_in_their_order(pipe: tuple[int, int]) -> None:
    read, write = pipe
    lines = LineReader(read)
    assert lines.read_line(0.0) is None
    os.write(write, b"one\n\ntw")
    assert [lines.read_line(0.0) for _ in range(3)] == [b"one", b"", None]
    assert not lines.ended
    os.write(write, b"o\nthr")
    os.close(write)
    assert [lines.read_line(0.0) for _ in range(2)] == [b"two", None]
    # What has no end is no line.
    assert lines.ended


def test_lines_that_have_come_are_read_behind_the_end(pipe: tuple[int, int]) -> None:
    read, write = pipe
    os.write(write, b"one\ntwo\n")
    os.close(write)
    lines = LineReader(read)
    assert [lines.read_line(1.0) for _ in range(3)] == [b"one", b"two", None]


def test_a_line_has_a_longest(pipe: tuple[int, int]) -> None:
    read, write = pipe
    lines = LineReader(read, longest=4)
    os.write(write, b"1234\n1234")
    assert lines.read_line(0.0) == b"1234"
    os.write(write, b"5")
    with pytest.raises(LineTooLongError):
        lines.read_line(0.0)


def test_end_of_the_output_is_kept(pipe: tuple[int, int]) -> None:
    read, write = pipe
    tail = OutputTail(os.fdopen(os.dup(read), "rb", buffering=0))
    for number in range(3000):
        os.write(write, b"%099d\n" % number)
    os.close(write)
    tail.join()
    assert tail.printed == 300_000
    assert len(tail.get_tail()) == 16 * 1024
    assert tail.get_tail().endswith("2999\n")
