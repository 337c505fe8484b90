"""PTX of all versions, as people and compilers write it. That it is PTX, ptxas has to say."""

from __future__ import annotations

from pathlib import Path

import pytest

from frx_graph.evidence.ptx.instruction import Kind
from frx_graph.evidence.ptx.module import Function
from frx_graph.evidence.ptx.parsing import parse_ptx, read_ptx
from frx_graph.evidence.ptx.ptxas import assemble, find_ptxas

FILES = Path(__file__).parent.parent.parent / "data" / "ptx" / "syntax"


def functions(name: str) -> dict[str, Function]:
    return {one.name: one for one in read_ptx(FILES / f"{name}.ptx").functions}


def loops(function: Function) -> list[tuple[str, int, int, bool]]:
    return [(loop.label, loop.line, loop.instructions, loop.innermost) for loop in function.loops]


@pytest.mark.skipif(find_ptxas() is None, reason="no ptxas")
@pytest.mark.parametrize(
    ("name", "target", "entries"),
    [
        ("old_2_3", "sm_75", {"branches"}),
        ("modern_sm90a", "sm_90a", {"clusters", "product", "dispatch"}),
        ("modern_sm100a", "sm_100a", {"tensor_memory"}),
    ],
)
def test_what_is_read_here_is_ptx(name: str, target: str, entries: set[str]) -> None:
    # The assembler of today takes old targets for one that it knows; PTX 1.4 was of 32 bits, which it refuses.
    assert set(assemble(FILES / f"{name}.ptx", target)) == entries
    assert {one.name for one in functions(name).values() if one.entry} == entries


def test_ptx_1_4() -> None:
    module = read_ptx(FILES / "old_1_4.ptx")
    (scale,) = module.kernels
    assert (module.version, module.target, scale.linkage) == ("1.4", "sm_10, map_f64_to_f32", "")
    assert loops(scale) == [("$Lt_0_1", 23, 6, True)]
    assert (scale.mix[Kind.GLOBAL_LOAD], scale.mix[Kind.OTHER], scale.virtual_registers) == (1, 3, 12)


def test_ptx_2_3() -> None:
    found = functions("old_2_3")
    assert set(found) == {"half_of", "nothing", "branches"}
    entry = found["branches"]
    assert loops(entry) == [("again", 23, 13, False), ("more", 32, 2, True), ("more", 37, 2, True)]
    assert (entry.local_bytes, entry.shared_bytes, entry.virtual_registers) == (16 + 6, 64, 9)
    assert (entry.branches, entry.mix[Kind.GLOBAL_STORE], entry.mix[Kind.INTEGER]) == (4, 1, 1)
    assert entry.calls == {"half_of", "nothing"}
    assert entry.tuning == (".maxntid 256, 1, 1", ".minnctapersm 2")


def test_labels_are_known_in_their_scope() -> None:
    assert loops(functions("modern_sm90a")["clusters"]) == [("LAB_WAIT", 40, 3, True), ("LAB_WAIT", 48, 3, True)]


def test_ptx_of_hopper() -> None:
    module = read_ptx(FILES / "modern_sm90a.ptx")
    found = functions("modern_sm90a")
    assert module.declared == ("other_name",)
    clusters = found["clusters"]
    assert clusters.capabilities == {"barriers", "mbarrier", "tensor_cores", "tma", "wgmma"}
    assert clusters.tuning == (".reqntid 128, 1, 1", ".reqnctapercluster 2, 1, 1", ".explicitcluster")
    assert (clusters.mix[Kind.TENSOR], clusters.mix[Kind.GLOBAL_LOAD], clusters.mix[Kind.GLOBAL_STORE]) == (1, 1, 2)
    assert (found["product"].mix[Kind.TENSOR], found["product"].tuning) == (2, (".maxclusterrank 8",))


def test_a_table_of_targets_may_lead_back() -> None:
    assert loops(functions("modern_sm90a")["dispatch"]) == [("next", 98, 7, True)]


def test_ptx_of_blackwell() -> None:
    (entry,) = functions("modern_sm100a").values()
    assert entry.capabilities == {"tcgen05", "tensor_cores"}
    assert entry.mix[Kind.TENSOR] == 1


def test_an_entry_uses_what_functions_use_that_it_calls() -> None:
    (entry,) = parse_ptx(
        ".version 8.0\n.target sm_80\n.func inner() { mma.sync.x a, b, c, d; call inner; ret; }\n"
        ".func outer() { call.uni inner; ret; }\n.entry k() { call (r), outer, (a); ret; }\n",
        "k.ptx",
    ).kernels
    assert entry.capabilities == {"tensor_cores"}
    assert dict(entry.mix) == {Kind.CONTROL_FLOW: 2}


def test_backward_branch_without_a_cycle_is_not_a_loop() -> None:
    (entry,) = parse_ptx(
        ".version 8.0\n.target sm_80\n.entry k() { bra A; B: ret; A: add.s32 a, a, a; bra B; }\n", "k.ptx"
    ).kernels
    assert entry.loops == ()
