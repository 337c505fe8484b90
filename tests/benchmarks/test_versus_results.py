"""The bounds are computed from what was measured, and speak only of that."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console
from versus_arms import Inner, Kind
from versus_case import Mode
from versus_results import BACKWARD_BATCH, ArmResult, CaseResult, Verdict, verdicts
from versus_tables import WIDTH, number, print_results
from versus_timing import Ratio
from zoo_entry import Group

from frx_graph.support.allocator import Allocation


def arm(kind: Kind, speed: float, conversion_bytes: int | None = None) -> ArmResult:
    return ArmResult(
        f"{kind} {speed}",
        kind,
        (1.0, 1.0),
        Ratio(speed, (speed - 0.01, speed + 0.01)),
        1.0 / speed,
        conversion_bytes=conversion_bytes,
        conversions=1,
    )


def case(
    frx: float | None = 1.2,
    variant: float | None = 1.1,
    left: tuple[int | None, int | None] = (None, None),
    entry: str = "resnet18",
) -> CaseResult:
    arms = [arm(Kind.REFERENCE, 1.0, left[0])]
    if variant is not None:
        arms += [arm(Kind.VARIANT, 0.5), arm(Kind.VARIANT, variant)]
    if frx is not None:
        arms += [arm(Kind.FRX, frx, left[1]), arm(Kind.FRX, frx / 2, 10**9)]
    return CaseResult(
        entry, Group.CONVOLUTIONAL, Mode.INFERENCE, 1, "fp32", Inner.INDUCTOR, 3, disturbed=0, arms=tuple(arms)
    )


def verdict(results: list[CaseResult], start: str, torch_version: str = "2.15.0", device: str = "cpu") -> Verdict:
    (found,) = [v for v in verdicts(results, torch_version, device) if v.bound.startswith(start)]
    return found


def test_the_best_arm_counts() -> None:
    assert case().frx_speed == 1.2
    assert case().frx_over_variants == pytest.approx(1.2 / 1.1)


def test_broken_arm_is_not_the_best_arm() -> None:
    broken = ArmResult("frx eager", Kind.FRX, error="wrong output 0")
    assert replace(case(frx=None), arms=(*case(frx=None).arms, broken)).frx_speed is None


@pytest.mark.parametrize("results", [[], [case(frx=None)]])
def test_nothing_is_judged_without_frx(results: list[CaseResult]) -> None:
    assert {v.holds for v in verdicts(results, "2.15.0", "cpu")} == {None}
    assert {v.holds for v in verdicts(results, "2.15.0", "cuda")} == {None}


@pytest.mark.parametrize(("speed", "holds"), [(0.98, True), (0.979, False)])
def test_the_slowest_case_decides_and_is_named(speed: float, holds: bool) -> None:
    for device in ("cpu", "cuda"):
        found = verdict([case(3.0), case(speed, entry="slow")], "frx, slowest", device=device)
        assert (found.holds, found.figure) == (holds, speed)
        assert found.about.startswith("slow, inference")


def test_each_allocation_of_memory_is_judged_by_itself() -> None:
    pooled = replace(case(0.9, entry="slow"), allocation=Allocation.POOLED)
    found = {v.bound: v.holds for v in verdicts([case(3.0), pooled], "2.15.0", "cpu")}
    assert found["frx, slowest case ≥ 0.98"] is True
    assert found["pooled memory: frx, slowest case ≥ 0.98"] is False
    assert pooled.title == f"{replace(case(), entry='slow').title}, pooled memory"


def test_the_best_variant_has_to_be_reached() -> None:
    assert verdict([case(1.2, 1.22)], "frx over best variant, slowest").holds is True
    assert verdict([case(1.2, 1.23)], "frx over best variant, slowest").holds is False


def test_three_networks_have_to_gain_from_regions() -> None:
    names = ("resnet18", "resnet50", "mixed_64_512", "unet_plain")
    gains = (1.20, 1.03, 1.05, 1.00)
    results = [case(gain, 1.0, entry=name) for name, gain in zip(names, gains, strict=True)]
    found = verdict(results, "frx over best variant, on 3")
    assert (found.holds, found.figure) == (True, 1.03)
    results[1] = case(1.02, 1.0, entry="resnet50")
    assert verdict(results, "frx over best variant, on 3").holds is False
    # Other networks, larger batches and two networks alone say nothing.
    others = [case(2.0, 1.0, entry="vit_small"), replace(results[0], entry="unet_plain", batch=8)]
    assert verdict([*results[:2], *others], "frx over best variant, on 3").holds is None


def test_regions_are_also_judged_without_frozen_weights() -> None:
    frozen = replace(arm(Kind.VARIANT, 1.5), frozen=True)
    results = [
        replace(found, arms=(*found.arms, frozen))
        for found in (case(1.1, 1.0, entry=name) for name in ("resnet18", "resnet50", "unet_plain"))
    ]
    assert verdict(results, "frx over best variant, on 3").holds is False
    assert verdict(results, "the same, no arm with frozen weights").figure == pytest.approx(1.1)


def test_geometric_means_are_taken_over_their_own_group_and_batch() -> None:
    results = [case(1.0), case(4.0, entry="b"), replace(case(0.1), batch=8), replace(case(0.1), group=Group.WRITTEN)]
    found = verdict(results, "standard convolutional, inference, batch 1")
    assert (found.figure, found.holds, found.about) == (pytest.approx(2.0), True, "2 cases")
    assert verdict(results, "standard convolutional, inference, batch 8").figure == pytest.approx(0.1)
    assert verdict(results, "written").figure == pytest.approx(0.1)
    assert verdict(results, "standard convolutional, training").holds is None


def test_the_inner_compilers_are_judged_apart() -> None:
    eager = replace(case(1.24), inner=Inner.EAGER)
    assert verdict([eager], "inner eager").holds is False
    assert verdict([eager], "frx, slowest").holds is None


def test_one_bound_is_about_another_torch() -> None:
    training = replace(case(1.4, entry="mobilenet_v2"), mode=Mode.TRAINING, batch=BACKWARD_BATCH)
    assert verdict([training], "MobileNetV2", "2.13.0+cpu").holds is True
    assert verdict([training], "MobileNetV2", "2.15.0").holds is None
    assert verdict([replace(training, batch=4)], "MobileNetV2", "2.13.0+cpu").holds is None


@pytest.mark.parametrize(
    ("left", "share"),
    [((100, 10), 0.1), ((0, 5), float("inf")), ((0, 0), None), ((None, 5), None), ((100, None), None)],
)
def test_conversions_left(left: tuple[int | None, int | None], share: float | None) -> None:
    assert case(left=left).conversions_left == share
    found = verdict([case(left=left)], "conversion bytes")
    assert found.holds is (None if share is None else share <= 0.1)
    assert found.figure == (None if share == float("inf") else share)


def printed(results: list[CaseResult], left_out: tuple[str, ...] = ()) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=WIDTH, highlight=False, markup=False)
    print_results(results, verdicts(results, "2.15.0", "cpu"), left_out, console)
    return stream.getvalue()


def test_the_tables_fit_into_80_columns_and_hold_the_figures() -> None:
    wide = replace(
        arm(Kind.VARIANT, 12.34, 98_765_400_000), arm="eager channels-last", median_s=12.34567, compile_s=123.4
    )
    result = replace(case(), arms=(*case().arms, replace(wide, peak_bytes=12_345_600_000, conversions=4321)))
    text = printed([result], ("vit_small, training",))
    assert max(map(len, text.splitlines())) <= WIDTH
    (row,) = [line for line in text.splitlines() if line.startswith("eager channels-last")]
    assert row == "eager channels-last 12.34 12.33–12.35 12345.67     123.4 12345.6   4321 98765.4"
    assert "1 cases left out for lack of time, from vit_small, training" in text


def test_broken_arm_reports_why() -> None:
    broken = ArmResult("frx eager", Kind.FRX, error="wrong output 0")
    text = printed([replace(case(), arms=(*case().arms, broken))])
    assert "broken" in text
    assert "frx eager: wrong output 0" in text


def test_unknown_is_a_dash_and_zero_is_not() -> None:
    assert (number(None, "d"), number(0, "d"), number(0.0, ".1f"), number(2, ".1f", 1e3)) == ("–", "0", "0.0", "2000.0")
