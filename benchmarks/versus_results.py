"""What a comparison found, and which of the bounds hold. Unknown is None."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from versus_arms import Inner, Kind
from versus_case import Mode, title_of
from versus_timing import Ratio, geometric_mean
from zoo_entry import Group

from frx_graph.support.allocator import Allocation

NOISE = 0.98
"""A speed from which on an arm counts as no slower: two equal arms differ by so much on a shared machine."""


@dataclass(frozen=True, slots=True)
class ArmResult:
    """One arm of a case. `seconds` has one number a round; `ratio` is speed over the reference's. With an `error` the
    arm did not compile, or computed something wrong, and was not timed."""

    arm: str
    kind: Kind
    seconds: tuple[float, ...] = ()
    ratio: Ratio | None = None
    median_s: float | None = None
    compile_s: float | None = None
    peak_bytes: int | None = None
    conversions: int | None = None
    conversion_bytes: int | None = None
    frozen: bool = False
    error: str | None = None


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One case: its arms, the reference first."""

    entry: str
    group: Group
    mode: Mode
    batch: int
    dtype: str
    inner: Inner
    block: int
    disturbed: int
    arms: tuple[ArmResult, ...]
    allocation: Allocation = Allocation.DEFAULT

    @property
    def title(self) -> str:
        return title_of(self.entry, self.mode, self.batch, self.dtype, self.inner, self.allocation)

    def best(self, kind: Kind) -> ArmResult | None:
        """The fastest arm of a kind; None where none was timed."""
        timed = [arm for arm in self.arms if arm.kind is kind and arm.ratio is not None]
        return max(timed, key=lambda arm: speed(arm) or 0.0, default=None)

    @property
    def frx_speed(self) -> float | None:
        """The speed of frx with its best plan, over the reference's."""
        return speed(self.best(Kind.FRX))

    @property
    def frx_over_variants(self) -> float | None:
        """The same over the best whole-graph variant's."""
        frx, variant = self.frx_speed, speed(self.best(Kind.VARIANT))
        return None if frx is None or variant is None else frx / variant

    @property
    def with_live_weights(self) -> CaseResult:
        """The case without the arms for which weights are constants."""
        return replace(self, arms=tuple(arm for arm in self.arms if not arm.frozen))

    @property
    def conversions_left(self) -> float | None:
        """Bytes that frx's best plan still converts, over the reference's; None where either is unknown, or where the
        reference converts none and neither does frx."""
        frx, reference = self.best(Kind.FRX), self.best(Kind.REFERENCE)
        if frx is None or reference is None or frx.conversion_bytes is None or reference.conversion_bytes is None:
            return None
        if reference.conversion_bytes == 0:
            return math.inf if frx.conversion_bytes else None
        return frx.conversion_bytes / reference.conversion_bytes


def speed(arm: ArmResult | None) -> float | None:
    """Over the reference's; None where it was not timed."""
    return None if arm is None or arm.ratio is None else arm.ratio.median


@dataclass(frozen=True, slots=True)
class Verdict:
    """One bound and what was measured for it. `holds` is None where nothing that it speaks of was measured."""

    bound: str
    figure: float | None
    holds: bool | None
    about: str = ""


REGIONAL = ("resnet18", "resnet50", "mixed_64_512", "unet_plain")
"""Networks whose stages differ: at batch 1 a decision per region has to beat the best one for the whole graph."""
REGIONAL_BOUND, REGIONAL_COUNT = 1.03, 3
BACKWARD_BATCH = 16
"""Images in a step of MobileNetV2 where what torch 2.13 denies its backward is judged: enough that loops and
convolutions take the time, and not the calls between them (1.23 times as fast at 4 images, 1.41 at 16)."""


def verdicts(results: Sequence[CaseResult], torch_version: str, device: str) -> tuple[Verdict, ...]:
    """All bounds, judged on what was measured, for each allocation of memory."""
    found: list[Verdict] = []
    for allocation in dict.fromkeys(case.allocation for case in results):
        alike = _verdicts([case for case in results if case.allocation is allocation], torch_version, device)
        told = "" if allocation is Allocation.DEFAULT else f"{allocation} memory: "
        found += [replace(verdict, bound=f"{told}{verdict.bound}") for verdict in alike]
    return tuple(found) if found else _verdicts((), torch_version, device)


def _verdicts(results: Sequence[CaseResult], torch_version: str, device: str) -> tuple[Verdict, ...]:
    compiled = [case for case in results if case.inner is Inner.INDUCTOR]
    if device == "cuda":
        return (
            _lowest("frx, slowest case", compiled, _frx_speed, NOISE),
            _mean("frx, geometric mean", compiled, _frx_speed, 1.25),
        )
    standard = [case for case in compiled if case.group is Group.CONVOLUTIONAL]
    mobilenet = [c for c in _in(compiled, Mode.TRAINING, BACKWARD_BATCH) if c.entry == "mobilenet_v2"]
    return (
        _lowest("frx, slowest case", compiled, _frx_speed, NOISE),
        _lowest("frx over best variant, slowest case", results, _frx_over_variants, NOISE),
        _regional("frx over best variant", compiled),
        _regional("the same, no arm with frozen weights", [case.with_live_weights for case in compiled]),
        _mean("standard convolutional, inference, batch 1", _in(standard, Mode.INFERENCE, 1), _frx_speed, 1.12),
        _mean("standard convolutional, inference, batch 8", _in(standard, Mode.INFERENCE, 8), _frx_speed, 1.03),
        _mean("standard convolutional, training", _in(standard, Mode.TRAINING), _frx_speed, 1.05),
        _lowest("transformers, slowest case", [c for c in compiled if c.group is Group.TRANSFORMER], _frx_speed, NOISE),
        _mean("written by people", [c for c in compiled if c.group is Group.WRITTEN], _frx_speed, 1.30),
        _mean("inner eager, over eager", [c for c in results if c.inner is Inner.EAGER], _frx_speed, 1.25),
        _lowest(
            f"MobileNetV2 training at batch {BACKWARD_BATCH}, torch 2.13",
            mobilenet if torch_version.startswith("2.13.") else [],
            _frx_speed,
            1.35,
        ),
        _conversions(compiled),
    )


def _in(cases: Sequence[CaseResult], mode: Mode, batch: int | None = None) -> list[CaseResult]:
    return [case for case in cases if case.mode is mode and batch in (None, case.batch)]


def _frx_speed(case: CaseResult) -> float | None:
    return case.frx_speed


def _frx_over_variants(case: CaseResult) -> float | None:
    return case.frx_over_variants


Figure = Callable[[CaseResult], float | None]


def _figures(cases: Iterable[CaseResult], figure: Figure) -> list[tuple[float, CaseResult]]:
    found = ((figure(case), case) for case in cases)
    return [(value, case) for value, case in found if value is not None]


def _lowest(text: str, cases: Iterable[CaseResult], figure: Figure, bound: float) -> Verdict:
    value, case = min(_figures(cases, figure), key=lambda pair: pair[0], default=(None, None))
    if value is None or case is None:
        return Verdict(f"{text} ≥ {bound:.2f}", None, None)
    return Verdict(f"{text} ≥ {bound:.2f}", value, value >= bound, case.title)


def _mean(text: str, cases: Iterable[CaseResult], figure: Figure, bound: float) -> Verdict:
    values = [value for value, _ in _figures(cases, figure)]
    mean = geometric_mean(values)
    return Verdict(
        f"{text} ≥ {bound:.2f}", mean, None if mean is None else mean >= bound, f"{len(values)} cases" if values else ""
    )


def _regional(name: str, cases: Sequence[CaseResult]) -> Verdict:
    """The bound's figure is that of the third best network, each with its best case."""
    text = f"{name}, on {REGIONAL_COUNT} of {', '.join(REGIONAL)}, batch 1 ≥ {REGIONAL_BOUND:.2f}"
    best: dict[str, float] = {}
    for value, case in _figures(_in(cases, Mode.INFERENCE, 1), _frx_over_variants):
        if case.entry in REGIONAL:
            best[case.entry] = max(value, best.get(case.entry, value))
    if len(best) < REGIONAL_COUNT:
        return Verdict(text, None, None, f"{len(best)} measured" if best else "")
    ranked = sorted(best.items(), key=lambda item: -item[1])
    figure = ranked[REGIONAL_COUNT - 1][1]
    return Verdict(text, figure, figure >= REGIONAL_BOUND, ", ".join(f"{name} {value:.2f}" for name, value in ranked))


def _conversions(cases: Iterable[CaseResult]) -> Verdict:
    text, bound = "conversion bytes left, worst case ≤ 10 %", 0.10
    value, case = max(
        _figures(cases, lambda case: case.conversions_left), key=lambda pair: pair[0], default=(None, None)
    )
    if value is None or case is None:
        return Verdict(text, None, None)
    # The reference converts nothing there: the bound is broken without a figure.
    return Verdict(text, None if value == math.inf else value, value <= bound, case.title)
