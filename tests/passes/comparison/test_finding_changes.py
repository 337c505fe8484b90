"""Findings that went away, and those that came."""

from __future__ import annotations

from frx_graph.passes.comparison.finding_changes import FindingChange, Found, finding_changes
from frx_graph.passes.comparison.matching import match_kernels


def changes(names_a: str, found_a: list[Found], names_b: str, found_b: list[Found]) -> tuple[FindingChange, ...]:
    matching = match_kernels(names_a.split(), names_b.split(), lambda name: name)
    return finding_changes("source", matching, found_a, found_b)


def test_what_went_and_what_came() -> None:
    (gone, new) = changes(
        "f", [Found("strided", "f"), Found("kept", "f")], "f", [Found("kept", "f"), Found("weak", "f")]
    )
    assert (gone.code, gone.a, gone.b, gone.resolved, gone.introduced) == ("strided", 1, 0, True, False)
    assert (new.code, new.a, new.b, new.resolved, new.introduced) == ("weak", 0, 1, False, True)


def test_fewer_of_it_is_something() -> None:
    (less,) = changes("f", [Found("strided", "f")] * 3, "f", [Found("strided", "f")])
    assert (less.a, less.b, less.resolved) == (3, 1, True)


def test_a_finding_moves_with_its_kernel() -> None:
    assert changes("f old", [Found("strided", "old")], "f new1 new2", [Found("strided", "new2")]) == ()
    (gone,) = changes("f old", [Found("strided", "old")], "f", [])
    assert (gone.kernel_a, gone.resolved) == (None, True)


def test_a_finding_of_another_kernel_is_another() -> None:
    found = changes("f g", [Found("strided", "f")], "f g", [Found("strided", "g")])
    assert [(one.kernel_a, one.resolved) for one in found] == [("f", True), ("g", False)]


def test_a_launch_is_of_its_kernel_unless_that_could_be_another() -> None:
    (gone,) = changes("f", [Found("subwarp", "f<float>")], "f", [])
    assert gone.kernel_a == "f"
    (gone,) = changes("f<1> f<2>", [Found("subwarp", "f<3>")], "f<1> f<2>", [])
    assert gone.kernel_a is None


def test_what_is_no_defect_is_neither() -> None:
    (heavy,) = changes("f", [], "f", [Found("heavy", "f", defect=False)])
    assert not heavy.resolved
    assert not heavy.introduced
