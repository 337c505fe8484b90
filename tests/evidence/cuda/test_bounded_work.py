"""However a file is made, the work that it takes grows with its size. Work is counted, not timed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from frx_graph.errors import EvidenceError
from frx_graph.evidence.cuda.constants import find_file_constants
from frx_graph.evidence.cuda.parsing import parse_cuda
from frx_graph.evidence.cuda.polynomial import MOST_TERMS, ZERO, make_symbol
from frx_graph.evidence.cuda.source import Kernel
from frx_graph.evidence.cuda.state import MOST_CONDITIONS, Inlining, State
from frx_graph.evidence.cuda.syntax import find_enclosing_nodes, parse_tree
from frx_graph.evidence.cuda.values import ANYTHING, Symbols, apply_operator


def kernel(body: str, before: str = "") -> Kernel:
    (found,) = parse_cuda(f"{before}__global__ void k(int* a, int n) {{\n{body}\n}}", "k.cu").kernels
    return found


def test_names_of_values_do_not_double() -> None:
    (access,) = kernel("n = n ^ a[0];" + "n = n ^ n;\n" * 60 + "a[n] = 0;").accesses[1:]
    assert len(str(access.offset)) < 5_000


def test_large_products_are_not_multiplied_out() -> None:
    symbols = Symbols()
    one = other = ZERO
    for number in range(MOST_TERMS):
        one += symbols.get_symbol(f"a{number}", ANYTHING)
        other += symbols.get_symbol(f"b{number}", ANYTHING)
    assert len(apply_operator(symbols, "*", one, other).terms) == 1
    assert apply_operator(symbols, "*", one, make_symbol("a0")) == one * make_symbol("a0")


def test_condition_count_is_bounded() -> None:
    found = kernel("if (n) return;\n" * (MOST_CONDITIONS + 50) + "a[0] = 1;")
    assert max(len(event.step.conditions) for event in found.events) == MOST_CONDITIONS
    assert not found.complete
    assert kernel("if (n) return;\n" * MOST_CONDITIONS + "a[0] = 1;").complete


def test_functions_that_call_functions_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[int] = []
    step = State.make_step

    def counted(state: State, node: object) -> object:
        passed.append(1)
        return step(state, node)  # type: ignore[arg-type]

    monkeypatch.setattr(State, "make_step", counted)
    g = f"__device__ void g(int* p) {{ {'p[0] = 1;' * 400} }}\n"
    f = f"__device__ void f(int* p) {{ {'g(p);' * 400} }}\n"
    found = kernel("f(a);" * 400, g + f)
    assert not found.complete
    assert len(passed) < 2 * Inlining().left


def test_source_within_the_bounds_is_complete() -> None:
    before = "__device__ void f(int* p) { p[0] = 1; }\n"
    assert kernel("f(a);" * 50, before).complete


def test_comments_that_never_end_are_refused_before_they_are_parsed() -> None:
    with pytest.raises(EvidenceError, match="60,000 comments begin and none of them ends"):
        parse_cuda("__global__ void k() {}\n" + "/* x " * 60_000, "x.cu")
    assert parse_cuda("__global__ void k() {}\n" + "/* x " * 5, "x.cu").kernels


def test_a_file_without_a_kernel_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(content: bytes) -> None:
        raise AssertionError(len(content))

    monkeypatch.setattr("frx_graph.evidence.cuda.parsing.parse_tree", parse)
    with pytest.raises(EvidenceError, match="no kernel and no launch"):
        parse_cuda("int x;\n" * 1_000, "x.cu")


@pytest.mark.parametrize(
    "text",
    [
        "#define X " + "/*" * 100_000,
        "#define X" + " " * 200_000 + "\\",
        "const int" + " " * 200_000 + "X = 3;",
        "#define " + "X" * 200_000,
    ],
)
def test_constants_of_long_lines_end(text: str) -> None:
    """A search that goes back would read such a line again for each of its characters."""
    assert find_file_constants(f"#define N 3\n{text}\n") == {"N": 3}


@pytest.mark.parametrize("unit", ['"\\"', '""@', '""\x01', '""—', '""#'])
def test_characters_that_begin_nothing_are_refused_before_they_are_parsed(unit: str) -> None:
    with pytest.raises(EvidenceError, match=r"k\.cu: [23],\d{3} characters that CUDA does not know, expected CUDA"):
        parse_cuda("__global__ void k() {}\n" + unit * 3_000, "k.cu")
    assert parse_cuda("__global__ void k() {}\n" + unit * 50, "k.cu").kernels


@pytest.mark.parametrize("unit", ["//@\n", "/*@*/", '"@" ', 'R"(@"@)" ', "'\\\\' ", "#pragma @\n", "\\\n"])
def test_unknown_characters_in_comments_and_literals_are_accepted(unit: str) -> None:
    assert parse_cuda("__global__ void k() {}\n" + unit * 3_000, "k.cu").kernels


def test_nodes_around_places_are_those_that_the_parser_finds() -> None:
    text = b"namespace n { void f() { a<<<1, b<<<2, 3>>>(4)>>>(5); if (x) { c<<<6, 7>>>(); } } } d<<<8, 9>>>("
    root = parse_tree(text).root
    places = [(at, at + 3) for at in range(len(text)) if text[at : at + 3] == b"<<<"]
    found = list(find_enclosing_nodes(root, places))
    assert len(found) == 4
    for place, (node, *holders) in zip(places, found, strict=True):
        assert node == root.descendant_for_byte_range(*place)
        for holder in holders:
            assert holder == node.parent
            node = holder
        assert node == root


@pytest.mark.parametrize(
    ("before", "unit", "after"),
    [
        ("", "k<<<(1,", ""),
        ("void f() { ", "k<<<(1,", "1" + "),1>>>(1)" * 1_000 + "; }"),
        ("", "namespace n { __global__ void k() {} ", ""),
        ("void f() { ", "k<<<1, 1>>>();", "}"),
        ("", "__device__ int f(int a) { return a; }\n", ""),
    ],
)
def test_launches_and_kernels_within_each_other_take_time_as_they_are_many(before: str, unit: str, after: str) -> None:
    def count_lines(count: int) -> int:
        """Return how many lines of our code run."""
        lines = 0

        def trace(frame: FrameType, event: str, _: object) -> Callable[..., Any]:
            nonlocal lines
            lines += event == "line"
            return trace

        source = f"__global__ void g() {{}}\n{before}{unit * count}{after}"
        tracer = sys.gettrace()
        sys.settrace(trace)
        try:
            parse_cuda(source, "k.cu")
        finally:
            sys.settrace(tracer)
        return lines

    assert count_lines(1_200) < 6 * count_lines(300)
