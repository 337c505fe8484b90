"""Which kernel of one side is which of the other."""

from __future__ import annotations

from frx_graph.analyzers.comparison.matching import (
    FindingChange,
    KernelFinding,
    KnownKernel,
    MatchedBy,
    Matching,
    compare_findings,
    match_kernels,
)


def match(a: str, b: str) -> Matching[str]:
    return match_kernels(a.split(), b.split(), lambda name: name)


def pairs(found: Matching[str]) -> list[tuple[str, str, str]]:
    return [(pair.a, pair.b, pair.by.value) for pair in found.pairs]


def test_names_go_before_what_they_begin_with() -> None:
    found = match("f<16> g<16> h", "g<32> h f<16>")
    assert pairs(found) == [("f<16>", "f<16>", "name"), ("g<16>", "g<32>", "base_name"), ("h", "h", "name")]
    assert found.complete


def test_ambiguous_instances_are_not_matched() -> None:
    found = match("f<1> f<2>", "f<3> f<4>")
    assert found.pairs == ()
    assert (found.only_a, found.only_b) == (("f<1>", "f<2>"), ("f<3>", "f<4>"))


def test_the_only_kernel_of_each_is_compared_whatever_its_name() -> None:
    assert pairs(match("naive", "tiled")) == [("naive", "tiled", MatchedBy.ONLY_KERNEL.value)]
    assert match("naive", "tiled other").pairs == ()


def test_kernels_with_the_same_name_are_matched_by_place() -> None:
    a, b = [("f", 0), ("f", 1)], [("f", 1), ("f", 0), ("f", 2)]
    found = match_kernels(a, b, lambda one: one[0], lambda one: one[1])
    assert [(pair.a, pair.b) for pair in found.pairs] == [(("f", 0), ("f", 0)), (("f", 1), ("f", 1))]
    assert found.only_b == (("f", 2),)


def changes(
    names_a: str, found_a: list[KernelFinding], names_b: str, found_b: list[KernelFinding]
) -> tuple[FindingChange, ...]:
    matching = match_kernels(names_a.split(), names_b.split(), lambda name: name).map(KnownKernel)
    return compare_findings("source", matching, found_a, found_b)


def seen(code: str, kernel: str, *, defect: bool = True) -> KernelFinding:
    return KernelFinding(code, KnownKernel(kernel), defect)


def test_a_kernel_on_another_device_is_another() -> None:
    kernels = [KnownKernel("f", "0"), KnownKernel("f", "1")]
    matching = match_kernels(kernels, kernels, lambda one: one.name, lambda one: one.device)
    found = compare_findings("ncu", matching, [KernelFinding("slow", kernels[0])], [KernelFinding("slow", kernels[1])])
    assert [(one.kernel_a, one.resolved) for one in found] == [(kernels[0], True), (kernels[1], False)]


def test_resolved_and_introduced_findings_are_listed() -> None:
    (gone, new) = changes("f", [seen("strided", "f"), seen("kept", "f")], "f", [seen("kept", "f"), seen("weak", "f")])
    assert (gone.code, gone.a, gone.b, gone.resolved, gone.introduced) == ("strided", 1, 0, True, False)
    assert (new.code, new.a, new.b, new.resolved, new.introduced) == ("weak", 0, 1, False, True)


def test_fewer_of_it_is_something() -> None:
    (less,) = changes("f", [seen("strided", "f")] * 3, "f", [seen("strided", "f")])
    assert (less.a, less.b, less.resolved) == (3, 1, True)


def test_a_finding_moves_with_its_kernel() -> None:
    assert changes("f old", [seen("strided", "old")], "f new1 new2", [seen("strided", "new2")]) == ()
    (gone,) = changes("f old", [seen("strided", "old")], "f", [])
    assert (gone.kernel_a, gone.resolved) == (None, True)


def test_a_finding_of_another_kernel_is_another() -> None:
    found = changes("f g", [seen("strided", "f")], "f g", [seen("strided", "g")])
    assert [(one.kernel_a, one.resolved) for one in found] == [(KnownKernel("f"), True), (KnownKernel("g"), False)]


def test_a_launch_is_of_its_kernel_unless_that_could_be_another() -> None:
    (gone,) = changes("f", [seen("subwarp", "f<float>")], "f", [])
    assert gone.kernel_a == KnownKernel("f")
    (gone,) = changes("f<1> f<2>", [seen("subwarp", "f<3>")], "f<1> f<2>", [])
    assert gone.kernel_a is None


def test_non_defect_is_neither_resolved_nor_introduced() -> None:
    (heavy,) = changes("f", [], "f", [seen("heavy", "f", defect=False)])
    assert not heavy.resolved
    assert not heavy.introduced
