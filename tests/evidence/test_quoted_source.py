"""What of a source file is quoted, and with which numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from frx_graph.errors import EvidenceError
from frx_graph.evidence.quoted_source import LARGEST, MOST_CHARACTERS, MOST_LINES, quote_source

FILLER = "// nothing\n" * 1000
STREAM = """template <typename T>
__global__ void __launch_bounds__(256, 2) stream(T *x, int n) {
  x[threadIdx.x] = 0;
}
"""


def write(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "kernel.cu"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_a_short_file_is_quoted_whole(tmp_path: Path) -> None:
    found = quote_source(write(tmp_path, STREAM.replace("\n", "\r\n")), ["gemm"])
    assert (found.first, found.total, found.lines) == (1, 5 - 1, tuple(STREAM.splitlines()))


@pytest.mark.parametrize(
    "kernel",
    ["void stream<float>(float *, int)", "void unnamed>::stream<float>(float *, int)", "_Z6streamIfEvPT_i", "stream"],
)
def test_a_long_one_from_shortly_before_the_kernel(tmp_path: Path, kernel: str) -> None:
    text = (
        FILLER + "__global__ void other(int *x) {}\nvoid f() { stream<<<1, 1>>>(0, 0); }\n" + FILLER + STREAM + FILLER
    )
    found = quote_source(write(tmp_path, text), ["gemm", kernel, "other"])
    at = found.lines.index("__global__ void __launch_bounds__(256, 2) stream(T *x, int n) {")
    assert text.splitlines()[found.first - 1 + at] == found.lines[at]
    assert at == 20
    assert len(found.lines) == MOST_LINES
    assert found.total == 3006


def test_from_the_beginning_where_no_kernel_is_in_it(tmp_path: Path) -> None:
    found = quote_source(write(tmp_path, FILLER + STREAM), ["gemm", "_Z7sstreamv", "str"])
    assert (found.first, len(found.lines)) == (1, MOST_LINES)


def test_long_lines_count(tmp_path: Path) -> None:
    found = quote_source(write(tmp_path, ("x" * 9_999 + "\n") * 100))
    assert sum(map(len, found.lines)) <= MOST_CHARACTERS
    assert len(found.lines) == 4


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "is empty"), (b"\x7fELF\0", "a compiled program"), (b"a\n" * (LARGEST // 2 + 1), "larger than 8,000,000")],
)
def test_non_source_is_an_error(tmp_path: Path, content: bytes, said: str) -> None:
    with pytest.raises(EvidenceError, match=said):
        quote_source(write(tmp_path, content))
