"""PTX is read down to the instruction, and what is none is refused with the line."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frx_graph.errors import EvidenceError
from frx_graph.evidence.ptx.instruction import Kind
from frx_graph.evidence.ptx.module import PtxModule
from frx_graph.evidence.ptx.parsing import parse_ptx, read_ptx

KERNELS = Path(__file__).parent.parent.parent / "data" / "ptx" / "kernels_sm80.ptx"
HEADER = ".version 8.0\n.target sm_90a\n.address_size 64\n"


@pytest.fixture(scope="module")
def module() -> PtxModule:
    return read_ptx(KERNELS)


def kernel(body: str) -> PtxModule:
    return parse_ptx(f"{HEADER}.entry k(.param .u64 p)\n{{\n{body}\n}}\n", "k.ptx")


def test_every_entry_is_found_whatever_its_linkage(module: PtxModule) -> None:
    listed = re.findall(r"\.entry\s+(\w+)", KERNELS.read_text())
    assert [one.name for one in module.kernels] == listed
    assert {one.name: one.linkage for one in module.kernels}["_Z11local_arrayPKfPf"] == ""
    assert (module.version, module.target) == ("9.0", "sm_80")


def test_instructions_are_as_many_as_lines_with_one(module: PtxModule) -> None:
    line = re.compile(r"^\s*(?:@!?%\w+\s+)?[a-z][\w.:]*\s*[^;{}]*(?:\{[^;{}]*\}[^;{}]*)*;", re.MULTILINE)
    assert sum(function.instructions for function in module.functions) == len(line.findall(KERNELS.read_text()))


def test_what_kernels_are_made_of(module: PtxModule) -> None:
    kernels = {one.name: one for one in module.kernels}
    saxpy = kernels["saxpy"]
    assert (saxpy.mix[Kind.GLOBAL_LOAD], saxpy.mix[Kind.GLOBAL_STORE], saxpy.mix[Kind.FP32]) == (2, 1, 1)
    assert (saxpy.branches, saxpy.has_back_edge, saxpy.tuning) == (1, False, (".maxntid 256, 1, 1",))
    product = kernels["_Z7productPK6__halfS1_Pf"]
    assert product.mix[Kind.TENSOR] == 1
    assert product.capabilities == {"tensor_cores"}
    nested = kernels["_Z12nested_loopsILi32EEvPKdPdi"]
    assert nested.shared_bytes == 32 * 8
    assert {"fp64", "atomics", "barriers"} <= nested.capabilities
    outer, inner = nested.loops
    assert (outer.innermost, inner.innermost) == (False, True)
    assert outer.instructions > inner.instructions
    assert inner.mix[Kind.SHARED_LOAD] == 1
    assert kernels["_Z11local_arrayPKfPf"].local_bytes == 16 * 4


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("ld.global.nc.v4.f32 {%f1,%f2,%f3,%f4}, [%rd1];", Kind.GLOBAL_LOAD),
        ("ld.param.u64 %rd1, [p];", Kind.OTHER),
        ("ld.const.f32 %f1, [c];", Kind.OTHER),
        ("ld.f32 %f1, [%rd1];", Kind.GLOBAL_LOAD),
        ("st.shared::cta.b32 [%r1], %r2;", Kind.SHARED_STORE),
        ("st.local.f32 [%rd1], %f1;", Kind.LOCAL_STORE),
        ("atom.global.add.f32 %f1, [%rd1], %f2;", Kind.ATOMIC),
        ("red.shared.add.u32 [%r1], 1;", Kind.ATOMIC),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1,%f2}, {%r1}, {%r2}, {%f1,%f2};", Kind.TENSOR),
        ("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%f1}, %rd1, %rd2, p, 1, 1, 0, 0;", Kind.TENSOR),
        ("wgmma.commit_group.sync.aligned;", Kind.OTHER),
        ("tcgen05.mma.cta_group::1.kind::f16 [%r1], %rd1, %rd2, %r2, %p1;", Kind.TENSOR),
        ("tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64 [%rd1];", Kind.OTHER),
        ("wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {%r1}, [%r2], %r3;", Kind.SHARED_LOAD),
        ("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1,%r2,%r3,%r4}, [%r5];", Kind.SHARED_LOAD),
        ("cp.async.cg.shared.global [%r1], [%rd1], 16;", Kind.GLOBAL_LOAD),
        (
            "cp.async.bulk.tensor.1d.shared::cluster.global.tile [%r1], [%rd1, {%r2}], [%r4];",
            Kind.GLOBAL_LOAD,
        ),
        ("cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], 64;", Kind.GLOBAL_STORE),
        ("cp.async.commit_group;", Kind.OTHER),
        ("sin.approx.f32 %f1, %f2;", Kind.SFU),
        ("sqrt.rn.f64 %fd1, %fd2;", Kind.FP64),
        ("fma.rn.bf16x2 %r1, %r2, %r3, %r4;", Kind.FP16),
        ("fma.rn.f32 %f1, %f2, %f3, %f4;", Kind.FP32),
        ("mad.wide.s32 %rd1, %r1, 4, %rd2;", Kind.INTEGER),
        ("@!%p1 bra.uni $L__BB0_2;", Kind.CONTROL_FLOW),
        ("cvt.rn.f16.f32 %h1, %f1;", Kind.CONVERSION),
        ("setp.ge.s32 %p1, %r1, %r2;", Kind.COMPARISON),
        ("mov.u32 %r1, %tid.x;", Kind.OTHER),
        ("add .rn .f32 %f1, %f2, %f3;", Kind.FP32),
        ("add.rn.f32.bf16 %f1, %h2, %f3;", Kind.FP32),
        ("ld.param::entry.u32 %r1, [p];", Kind.OTHER),
        ("ld.const[2].f32 %f1, [c];", Kind.OTHER),
        ("ld.global.v2.f32{%f1,%f2},[%rd1];", Kind.GLOBAL_LOAD),
        ("tex.2d.v4.f32.f32 {%f1,%f2,%f3,%f4}, [t, {%f5,%f6}];", Kind.GLOBAL_LOAD),
        ("sust.b.2d.b32.trap [s, {%r1,%r2}], {%r3};", Kind.GLOBAL_STORE),
        ("wmma;", Kind.OTHER),
        ("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%rd1], [%r1], 64;", Kind.ATOMIC),
        ("cp.async.bulk.prefetch.L2.global [%rd1], 64;", Kind.OTHER),
        (
            "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r1], [%r2], 64, [%r3];",
            Kind.SHARED_STORE,
        ),
    ],
)
def test_kinds(text: str, kind: Kind) -> None:
    (one,) = kernel(text).kernels
    assert dict(one.mix) == {kind: 1}


def test_other_statements_are_skipped() -> None:
    text = HEADER + (
        '.file 1 "a;b{.cu"\n.extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);\n'
        ".global .align 4 .b8 table[8] = {1, 2, 3, 4};\n.extern .shared .align 16 .b8 dynamic[];\n"
        ".weak .entry k(.param .u64 .ptr .global .align 8 p, .param .align 8 .b8 q[16])\n"
        ".maxntid 128\n.minnctapersm 2\n"
        "{ .reg .pred %p<2>; .reg .b32 a, b; .reg .b64 %rd<3>; .loc 1 3 4\n// a comment ; with { in it\n"
        '.pragma "nounroll";\n /* bra nowhere; */ $L: { .reg .b32 t; add.s32 t, a, b; }\n'
        "@%p1 bra $L; { .param .b32 x; call.uni (x), vprintf, (%rd1, %rd2); } ret; }\n"
        ".section .debug_str { .b8 1, 2 }\n"
    )
    found = parse_ptx(text, "k.ptx")
    (one,) = found.kernels
    assert (one.name, one.linkage, found.declared) == ("k", "weak", ("vprintf",))
    assert dict(one.mix) == {Kind.INTEGER: 1, Kind.CONTROL_FLOW: 3}
    assert one.tuning == (".maxntid 128", ".minnctapersm 2")
    assert one.virtual_registers == 2 + 3 * 2 + 1
    (loop,) = one.loops
    assert loop.instructions == 2


def test_forward_branch_is_not_a_loop() -> None:
    (one,) = kernel("bra $end; add.s32 %r1, %r1, 1; $end: ret;").kernels
    assert not one.has_back_edge


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no .version"),
        ("int main() { return 0; }", "no .version"),
        (HEADER + ".entry k(.param .u64 p)\n{ ret;", "line 5: it ends in the middle"),
        (HEADER + ".entry k(\n", "line 4: no PTX statement"),
        (HEADER + ".entry k()\n{\n  WHAT IS THIS;\n}\n", "line 6: no PTX statement"),
        (HEADER + "/* never", "line 4: a comment that does not end"),
        (HEADER + ".entry k()\n" + "{" * 1000, "line 5: it ends in the middle"),
        (HEADER + '"' + '\\"' * 100_000, "line 4: no PTX statement"),
        (HEADER + ".entry k()\n{ .local .b8 x[" + "9" * 5000 + "]; }", "no number"),
        (HEADER + "}\n", "line 4: no PTX statement"),
    ],
)
def test_non_ptx_is_refused(text: str, said: str) -> None:
    with pytest.raises(EvidenceError) as refused:
        parse_ptx(text, "k.ptx")
    assert said in str(refused.value)
    assert str(refused.value).startswith("k.ptx: ")
    assert len(str(refused.value).splitlines()) == 1


MODULE_SHARED = (
    HEADER
    + """
.shared .align 4 .b8 tile[4096];
.visible .shared .b32 one, two[2];
.extern .shared .b8 sized_by_launch[];
.func helper() { .reg .b32 %r<2>; mov.u32 %r1, two; ret; }
.entry uses(.param .u64 p) { .shared .b32 own[4]; .reg .b32 %r<2>; mov.u32 %r1, tile; ret; }
.shared .b8 later[64];
.entry calls() { call helper; mov.u32 %r1, one; ret; }
.entry neither() { .reg .b32 %tiles<2>; mov.u32 %tiles1, sized_by_launch; ret; }
"""
)


def test_shared_memory_of_the_module_belongs_to_what_uses_it() -> None:
    found = {one.name: one.shared_bytes for one in parse_ptx(MODULE_SHARED, "k.ptx").functions}
    assert found == {"helper": 8, "uses": 4096 + 16, "calls": 4 + 8, "neither": 0}


def test_prototypes_without_a_semicolon_as_nvopencc_wrote_them() -> None:
    prototype = "\t.visible .func (.param .s32 r) _Z1fi (.param .s32 a)\n"
    module = parse_ptx(f".version 2.1\n.target sm_20\n{prototype}\n{prototype}.entry k() {{ exit; }}\n", "k.ptx")
    assert [one.name for one in module.kernels] == ["k"]
    assert set(module.declared) == {"_Z1fi"}
    with pytest.raises(EvidenceError):
        parse_ptx(f"{HEADER}.entry k()\n.entry l() {{ exit; }}", "k.ptx")


def test_the_slow_path_of_sinf_is_told_from_other_double_precision() -> None:
    reduced = "cvt.rn.f64.s64 %fd1, %rd1;\n mul.f64 %fd2, %fd1, 0d3BF921FB54442D19;\n"
    (found,) = kernel(reduced).kernels
    assert (found.mix[Kind.FP64], found.reductions) == (1, 1)
    (found,) = kernel(f"{reduced} mul.f64 %fd3, %fd2, 0d3FE0000000000000;").kernels
    assert (found.mix[Kind.FP64], found.reductions) == (2, 1)


VALID = HEADER + ".visible .entry k(.param .u64 p)\n{\n .reg .b32 %r<3>;\n$L:\n @%p1 bra $L;\n ret;\n}\n"
PIECES = st.sampled_from(
    ["{", "}", ";", "/*", "//", '"', ".entry", ".reg", ":", "(", ")", "\0", "\n", "@", "é", "<99999999>"]
)


@pytest.mark.integration
@settings(suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.integers(0, len(VALID)), PIECES | st.text(max_size=4), st.integers(0, 30)), max_size=4))
def test_damage_is_refused_or_read(damage: list[tuple[int, str, int]]) -> None:
    text = VALID
    for at, piece, cut in damage:
        text = text[:at] + piece + text[at + cut :]
    try:
        parse_ptx(text, "k.ptx")
    except EvidenceError as error:
        assert str(error)


def test_any_bytes_are_refused(tmp_path: Path) -> None:
    draw = random.Random(0)
    path = tmp_path / "bytes.ptx"
    for _ in range(300):
        path.write_bytes(draw.randbytes(draw.randrange(300)))
        with pytest.raises(EvidenceError):
            read_ptx(path)
