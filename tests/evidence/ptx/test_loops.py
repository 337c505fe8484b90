"""Loops are those of control flow: compared with what is found in the plainest way, in random flow."""

from __future__ import annotations

import random

import pytest
from plain_flow import plain_loop_headers

from frx_graph.evidence.ptx.parsing import parse_ptx


def structured(draw: random.Random, depth: int, names: list[int]) -> str:
    """Statements, conditions and loops within each other, some blocks moved behind what they jump back to."""
    parts = []
    for _ in range(draw.randrange(1, 4)):
        names[0] += 1
        one, other = f"$A{names[0]}", f"$B{names[0]}"
        inside = structured(draw, depth - 1, names) if depth else "add.s32 a, a, a;"
        parts.append(
            draw.choice(
                (
                    "add.s32 a, a, a;",
                    f"{one}: {inside} @p bra {one};",
                    f"@p bra {one}; {inside} {one}:",
                    f"bra {other}; {one}: {inside} {other}: @p bra {one};",
                    f"bra {other}; {one}: {inside} ret; {other}: @p bra {one};",
                    f"{one}: @p bra {other}; {inside} bra {one}; {other}:",
                    f"{{ {one}: {inside} @!p bra {one}; }}",
                    f"{one}: @p bra {other}; {inside} @q bra {one}; {other}:",
                )
            )
        )
    return "\n".join(parts)


@pytest.mark.parametrize("seed", range(200))
def test_headers_are_as_in_the_plainest_way(seed: int) -> None:
    body = structured(random.Random(seed), 3, [0]) + "\nret;"
    (entry,) = parse_ptx(f".version 8.0\n.target sm_80\n.entry k()\n{{ {body} }}\n", "k.ptx").kernels
    assert {loop.label for loop in entry.loops} == plain_loop_headers(body)
    assert all(0 < loop.instructions <= entry.instructions for loop in entry.loops)


def test_loops_within_loops_have_their_instructions() -> None:
    body = "A: add.s32 a,a,a; B: C: mul.lo.s32 a,a,a; @p bra C; D: @p bra D; @p bra B; @p bra A; ret;"
    (entry,) = parse_ptx(f".version 8.0\n.target sm_80\n.entry k() {{ {body} }}\n", "k.ptx").kernels
    found = {loop.label: (loop.instructions, loop.innermost) for loop in entry.loops}
    # B and C are one place, and so one loop, entered by the last label.
    assert found == {"A": (6, False), "C": (4, False), "D": (1, True)}


def test_flow_that_is_entered_in_two_places_is_a_loop() -> None:
    body = "@p bra B; A: add.s32 a,a,a; B: add.s32 a,a,a; @p bra A; ret;"
    (entry,) = parse_ptx(f".version 8.0\n.target sm_80\n.entry k() {{ {body} }}\n", "k.ptx").kernels
    assert len(entry.loops) == 1
