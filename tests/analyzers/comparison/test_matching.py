"""Which kernel of one side is which of the other."""

from __future__ import annotations

from frx_graph.analyzers.comparison.matching import MatchedBy, Matching, match_kernels


def match(a: str, b: str) -> Matching[str]:
    return match_kernels(a.split(), b.split(), lambda name: name)


def pairs(found: Matching[str]) -> list[tuple[str, str, str]]:
    return [(pair.a, pair.b, pair.by.value) for pair in found.pairs]


def test_names_go_before_what_they_begin_with() -> None:
    found = match("f<16> g<16> h", "g<32> h f<16>")
    assert pairs(found) == [("f<16>", "f<16>", "name"), ("g<16>", "g<32>", "base_name"), ("h", "h", "name")]
    assert found.complete


def test_of_several_instances_none_is_guessed() -> None:
    found = match("f<1> f<2>", "f<3> f<4>")
    assert found.pairs == ()
    assert (found.only_a, found.only_b) == (("f<1>", "f<2>"), ("f<3>", "f<4>"))


def test_the_only_kernel_of_each_is_compared_whatever_its_name() -> None:
    assert pairs(match("naive", "tiled")) == [("naive", "tiled", MatchedBy.ONLY_KERNEL.value)]
    assert match("naive", "tiled other").pairs == ()


def test_kernels_of_one_name_are_told_apart_by_their_place() -> None:
    a, b = [("f", 0), ("f", 1)], [("f", 1), ("f", 0), ("f", 2)]
    found = match_kernels(a, b, lambda one: one[0], lambda one: one[1])
    assert [(pair.a, pair.b) for pair in found.pairs] == [(("f", 0), ("f", 0)), (("f", 1), ("f", 1))]
    assert found.only_b == (("f", 2),)
