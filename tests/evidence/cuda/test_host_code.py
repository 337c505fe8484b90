"""The parser is spared host code, and nothing that anybody asks for goes with it."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis_profiles import FEW_EXAMPLES
from tree_sitter import Range

from frx_graph.evidence.cuda.host_code import parsed_ranges
from frx_graph.evidence.cuda.parsing import parse_cuda

LONG = "int filler = 0;" * 10 + "\n"
KERNEL = "__global__ void k(float* a, int n) { if (n) { a[threadIdx.x] = 1; } }\n"


def parsed(text: str) -> list[str]:
    """The pieces that the parser sees."""
    lines, pieces = text.split("\n"), []
    for one in parsed_ranges(text.encode()):
        for place, (row, column) in ((one.start_byte, one.start_point), (one.end_byte, one.end_point)):
            assert place == sum(len(line) + 1 for line in lines[:row]) + column
        pieces.append(text[one.start_byte : one.end_byte])
    return pieces


@pytest.mark.parametrize(
    "head",
    [
        "int main()",
        "static inline std::vector<int>& f(const T (&x)[3], int n = 3)",
        "template <typename T> void Class<T>::f(int x) const noexcept",
        "Class::Class(int x) : member(x)",
        "bool operator()(int x) const",
        'extern "C" void f(/* ) { */ int x)',
        "#define OPEN {\nint f(int x)",
        "int before; // __global__ void\nint f(int x)",
    ],
)
@pytest.mark.parametrize(
    "body", ["", "puts(\"}\"); /* } */ char c = '}';", "if (x) {\n#ifdef A\nx++;\n#else\nx--;\n#endif\n}"]
)
def test_bodies_of_host_functions_go(head: str, body: str) -> None:
    assert parsed(f"{head} {{{body}{LONG}}}\nint x;") == [f"{head} {{", "}\nint x;"]


@pytest.mark.parametrize("holder", ["namespace a::b", "namespace", 'extern "C"', "struct S : T<int>", "class C final"])
def test_holders_are_looked_into(holder: str) -> None:
    text = f"{holder} {{ int f(int x) {{{LONG}}} int y; }} int g() {{{LONG}}}"
    assert parsed(text) == [f"{holder} {{ int f(int x) {{", "} int y; } int g() {", "}"]


@pytest.mark.parametrize(
    "text",
    [
        "__global__ void k(int x) {%s}",
        "template <int N>\n__device__\nint f(int x) {%s}",
        "struct S { __host__ __device__ int f(int x) const {%s} };",
        "__global__ void\n#if A\n__launch_bounds__(3)\n#endif\nk(int x) {%s}",
        "#if A\nint f(int x) {\n#else\nint f(long x) {\n#endif\n%s}",
        "int f(int x) {\n#if A\nif (x) {\n#endif\n%s}\n#if A\n}\n#endif\n",
        "MACRO(x) {%s}",
        "int x[] = {%s};",
        "auto f = [](int x) {%s};",
        "int f(int x) {%s",
        "int f(int x) { struct S { __device__ int g() { return 1; } }; %s}",
        'const char* s = R"({)"; int f(int x) {%s}',
        "__global__ void k(int x) {\n#if A\nx; }\n#else\nx; }\n#endif\nif (x) {%s} }",
        "int f(int x) { return x; }",
    ],
)
def test_whatever_is_no_host_function_for_certain_stays(text: str) -> None:
    text = text.replace("%s", LONG)
    assert "".join(parsed(text)) == text


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        ("int x = 1; k<<<1, 2>>>(x); int y;", ["k<<<1, 2>>>(x);"]),
        ("if (x) k<<<1, 2>>>(x); else k<<<3, 4>>>(x);", ["if (x) k<<<1, 2>>>(x);", "k<<<3, 4>>>(x);"]),
        ("for (int i = 0; i < 3; ++i) { k<<<1, 2>>>(x); }", ["k<<<1, 2>>>(x);"]),
        ("for (int i = 0; i < 3; ++i) k<<<1, 2>>>(x);", ["for (int i = 0; i < 3; ++i) k<<<1, 2>>>(x);"]),
        ("run(1, [&] { int y; k<<<dim3{1}, 2>>>(x); int z; }, 2); int y;", ["k<<<dim3{1}, 2>>>(x);"]),
        ("CHECK((k<<<1, 2>>>([=] { return 1; })));", ["CHECK((k<<<1, 2>>>([=] { return 1; })));"]),
        ("f(k<<<1, 2>>>(x), [] { k<<<1, 2>>>(x); }, 1);", ["f(k<<<1, 2>>>(x), [] { k<<<1, 2>>>(x); }, 1);"]),
        ("if (x) { k<<<1, 2>>>(x) }", ["k<<<1, 2>>>(x) "]),
        ('puts("<<<"); /* k<<<1, 2>>>(x); */', []),
        ("int y;\n#ifdef A\nk<<<1, 2>>>(x);\n#endif\nint z;", ["k<<<1, 2>>>(x);"]),
    ],
)
def test_launches_stay(body: str, kept: list[str]) -> None:
    assert parsed(f"int f(int x) {{{LONG}{body}\n{LONG}}}") == ["int f(int x) {", *kept, "}"]


@pytest.mark.parametrize(
    "body", ["f([] { k<<<1, 2>>>(x); }, k<<<1, 2>>>(x));", "k<<<1, 2>>>(x); )", "k<<<(1, 2>>>(x);"]
)
def test_of_launches_that_cannot_be_told_apart_all_stays(body: str) -> None:
    assert parsed(f"int f(int x) {{{LONG}{body}}}")[1:-1] == [f"{LONG}{body}"]


PIECES = [
    KERNEL,
    "__device__ int d(int x) { return x; }\n",
    f"int f(int n) {{ {LONG} dim3 b(32, 2); if (n) {{ k<<<n, b>>>(n); }} else k<<<1, 2, 3>>>(n); }}\n",
    f"int g(int n) {{ {LONG} for (;;) {{ n++; }} }}\n",
    f"namespace a {{ struct S {{ void f(int n) {{ {LONG} }} }}; {KERNEL} }}\n",
    "#if A\n",
    "#else\n",
    "#endif\n",
    "{\n",
    "}\n",
    "// {\n",
    'const char* s = "{";\n',
    "template <typename T>\n",
]


@settings(FEW_EXAMPLES, suppress_health_check=list(HealthCheck))
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=8))
def test_what_is_found_is_the_same(pieces: list[str]) -> None:
    text = KERNEL + "".join(pieces)
    with pytest.MonkeyPatch.context() as patch:
        whole = Range((0, 0), (text.count("\n"), 0), 0, len(text))
        patch.setattr("frx_graph.evidence.cuda.syntax.parsed_ranges", lambda content: [whole])
        before = parse_cuda(text, "k.cu")
    after = parse_cuda(text, "k.cu")
    if before.coverage.unparsed == 0:
        assert after == before
    else:
        # What was in the way of the parser may be gone.
        assert {one.name for one in after.kernels} >= {one.name for one in before.kernels}


@pytest.mark.parametrize(
    "piece", ["{", "}", "#if\n{", "#if\n{\n#else\n", '"\\"', "/*", "#/*", "'", "int f(a", ")", "f(){"]
)
def test_no_file_is_searched_again_and_again(piece: str) -> None:
    """A search that goes back would take minutes."""
    assert parsed_ranges(piece.encode() * 200_000)
