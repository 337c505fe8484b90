"""Names of one kernel in its several spellings, and names of others."""

from __future__ import annotations

import shutil
import subprocess
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.evidence.kernel_signature import KernelSignature, parse_kernel_signature, parse_source_signature
from frx_graph.evidence.mangled_name import read_mangled

KERNELS = {
    "plain": [
        "_Z9transposePKfPfii",
        "transpose(const float *, float *, int, int)",
        "transpose(float const*, float*, int, int)",
    ],
    "of doubles": ["_Z9transposePKdPdii", "transpose(double const*, double*, int, int)"],
    "instance": [
        "_Z9transposeILi16EEvPKfPfii",
        "void transpose<16>(const float *, float *, int, int)",
        "void transpose<(int)16>(float const*, float*, int, int)",
    ],
    "other instance": ["_Z9transposeILi32EEvPKfPfii", "void transpose<32>(float const*, float*, int, int)"],
    "of a type": ["_Z9transposeI6__halfEvPKT_PS1_ii", "void transpose<__half>(__half const*, __half*, int, int)"],
    "of another": [
        "_Z9transposeI13__nv_bfloat16EvPKT_PS1_ii",
        "void transpose<__nv_bfloat16>(__nv_bfloat16 const*, __nv_bfloat16*, int, int)",
    ],
    "in a namespace": ["_ZN2my9transposeEPKfPfii", "my::transpose(float const*, float*, int, int)"],
    "in two": [
        "_ZN2my5inner9transposeILb1ELin3EEEvPKfPfii",
        "void my::inner::transpose<true, -3>(float const*, float*, int, int)",
        "void my::inner::transpose<(bool)1, (int)-3>(const float *, float *, int, int)",
    ],
    "another function": ["_Z10transpose2PKfPfii", "transpose2(float const*, float*, int, int)", "transpose2"],
}


@pytest.mark.parametrize("names", KERNELS.values(), ids=KERNELS)
def test_spellings_of_one_kernel_fit(names: list[str]) -> None:
    for one, other in combinations(names, 2):
        assert parse_kernel_signature(one).can_match(parse_kernel_signature(other)), (one, other)


@pytest.mark.parametrize(("one", "other"), list(combinations(KERNELS, 2)), ids="-".join)
def test_those_of_two_do_not(one: str, other: str) -> None:
    for a, b in product(KERNELS[one], KERNELS[other]):
        assert not parse_kernel_signature(a).can_match(parse_kernel_signature(b)), (a, b)


def test_a_bare_name_fits_every_instance() -> None:
    bare = parse_kernel_signature("transpose")
    for kind, names in KERNELS.items():
        for name in names:
            assert bare.can_match(parse_kernel_signature(name)) == (kind != "another function"), name


def test_the_source_knows_its_namespaces() -> None:
    defined = parse_source_signature("my::transpose", template=False)
    assert defined.can_match(parse_kernel_signature("_ZN2my9transposeEPKfPfii"))
    assert not defined.can_match(parse_kernel_signature("_Z9transposePKfPfii"))
    assert not parse_source_signature("transpose", template=False).can_match(
        parse_kernel_signature("_ZN2my9transposeEPKfPfii")
    )
    assert not parse_source_signature("transpose", template=False).can_match(
        parse_kernel_signature("_Z9transposeILi16EEvPKfPfii")
    )
    assert parse_source_signature("transpose", template=True).can_match(
        parse_kernel_signature("_Z9transposeILi16EEvPKfPfii")
    )


@pytest.mark.parametrize(
    ("name", "function", "scope"),
    [
        ("_ZN12_GLOBAL__N_14copyEPf", "copy", ()),
        ("(anonymous namespace)::copy(float*)", "copy", ()),
        ("<unnamed>::copy(float *)", "copy", ()),
        ("void at::native::wide<4, at::native::Add<float>, std::array<char*, 3> >(int)", "wide", ("at", "native")),
        ("_ZN2at6native4wideILi4ENS0_3AddIfEESt5arrayIPcLm3EEEEviT0_T1_", "wide", ("at", "native")),
        ("_ZL4copyPf", "copy", ()),
        ("saxpy", "saxpy", None),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0", None),
        ("volta_sgemm_128x64_nn", "volta_sgemm_128x64_nn", None),
    ],
)
def test_function_and_namespaces(name: str, function: str, scope: tuple[str, ...] | None) -> None:
    found = parse_kernel_signature(name)
    assert (found.function, found.scope) == (function, scope)


def test_unreadable_parts_of_a_signature_are_omitted() -> None:
    assert parse_kernel_signature("_Z4copyIXsr3FooE5valueEEvPf") == KernelSignature("copy", ())
    assert parse_kernel_signature("_Z4copyIJifEEvPfDpT_") == KernelSignature("copy", (), ("int", "float"))
    assert read_mangled("_ZTV4copy") is None
    assert parse_kernel_signature("_ZTV4copy").function == "_ZTV4copy"


@pytest.mark.parametrize(
    "name", ["", " ", "(", "<", "::", "_Z", "_ZN", "_Z99999copy", "void", "void <", "a<b", "a(b", "_ZN1aI"]
)
def test_damaged_names_fit_themselves(name: str) -> None:
    assert parse_kernel_signature(name).can_match(parse_kernel_signature(name))
    assert not parse_kernel_signature(name).can_match(parse_kernel_signature("transpose"))


@pytest.mark.parametrize(
    "name",
    ["_Z1a" + "P" * 9000, "_Z1a" + "I1a" * 3000, "_Z1aI" + "J" * 9000, "_ZN1a" + "I1b" * 3000, "<" * 9000, "x" * 10**6],
)
def test_long_and_deep_names_are_read(name: str) -> None:
    assert parse_kernel_signature(name).function


NAMES = st.text(st.sampled_from("_ZNI1234aEPKfiLbSTt(<>), :*ov\x1b[")) | st.text(max_size=30)


@given(NAMES)
def test_any_text_is_a_name(text: str) -> None:
    assert parse_kernel_signature(text).can_match(parse_kernel_signature(text))
    assert parse_kernel_signature(f"_Z{text}").can_match(parse_kernel_signature(f"_Z{text}"))


@given(NAMES, NAMES)
def test_fitting_is_mutual(one: str, other: str) -> None:
    a, b = parse_kernel_signature(f"_Z1k{one}"), parse_kernel_signature(f"k{other}")
    assert a.can_match(b) == b.can_match(a)


@pytest.mark.skipif(shutil.which("nvcc") is None or shutil.which("c++filt") is None, reason="there is no nvcc")
def test_what_nvcc_mangles_fits_what_it_is_demangled_to(tmp_path) -> None:
    source = tmp_path / "kernels.cu"
    source.write_text(
        """
        namespace my {
        template <int N, bool B, class T> __global__ void a(const T* x, T* y, unsigned n) { y[n] = x[N]; }
        namespace { __global__ void hidden(float2* x) { x[0].x = 1; } }
        enum class Kind { ONE, TWO };
        template <Kind K> __global__ void b(long long* x) { x[0] = (int)K; }
        template <class F, class... R> __global__ void c(F f, float* x, R... rest) { x[0] = f(1.f); }
        struct Double { __device__ float operator()(float v) const { return 2 * v; } }; }
        static __global__ void d(char* const* x, void (*f)(int)) { f(x[0][0]); }
        template __global__ void my::a<4, true, float>(const float*, float*, unsigned);
        template __global__ void my::a<-4, false, double>(const double*, double*, unsigned);
        template __global__ void my::b<my::Kind::TWO>(long long*);
        template __global__ void my::c<my::Double, int, float>(my::Double, float*, int, float);
        void launch() { my::hidden<<<1, 1>>>(nullptr); d<<<1, 1>>>(nullptr, nullptr); }
        """
    )
    ptx = tmp_path / "kernels.ptx"
    subprocess.run(["nvcc", "-ptx", "-std=c++17", "-o", str(ptx), str(source)], check=True, capture_output=True)
    mangled = [line.split("(")[0].split()[-1] for line in ptx.read_text().splitlines() if ".entry" in line]
    assert len(mangled) == 6
    shown = subprocess.run(["c++filt", *mangled], check=True, capture_output=True, text=True).stdout.splitlines()
    functions = [parse_kernel_signature(name).function for name in mangled]
    assert sorted(functions) == ["a", "a", "b", "c", "d", "hidden"]
    for (i, one), (j, other) in product(enumerate(mangled), enumerate(shown)):
        assert parse_kernel_signature(one).can_match(parse_kernel_signature(other)) == (i == j), (one, other)
