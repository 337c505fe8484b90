"""What makes a block void, each cause by itself, and what looks like it but does not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pytest
import torch

from frx_graph.measure.machine import processor_state
from frx_graph.measure.machine.device_state import ThrottleReading
from frx_graph.measure.machine.disturbance import DISTURBED_SHARE, OthersLoad
from frx_graph.measure.machine.nvml_device import find_nvidia_device
from frx_graph.measure.machine.processor_state import CpuThrottling
from frx_graph.trials import block_watch as module
from frx_graph.trials.block_watch import watch_block
from frx_graph.trials.samples import Cause, Disturbance

QUIET = ThrottleReading(frozenset(), {"SwThermalSlowdown": 3})
HOT = ThrottleReading(frozenset({"HwThermalSlowdown"}), {"SwThermalSlowdown": 3})
COUNTED = ThrottleReading(frozenset(), {"SwThermalSlowdown": 4})


Reading = TypeVar("Reading")


def _next(readings: list[Reading]) -> Reading:
    """One after the other; the last one again and again."""
    return readings.pop(0) if len(readings) > 1 else readings[0]


class FakeDevice:
    def __init__(self, readings: Sequence[ThrottleReading] = (QUIET,), share: float | None = 0.0) -> None:
        self._readings = list(readings)
        self._share = share
        self.ours: frozenset[int] | None = None

    def read_throttling(self) -> ThrottleReading:
        return _next(self._readings)

    def read_others_share(self, since_microseconds: int, ours: frozenset[int]) -> float | None:
        assert since_microseconds > 1_600_000_000_000_000
        self.ours = ours
        return self._share


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A quiet machine, unless the test says otherwise."""

    def machine(
        load: OthersLoad | None = None, held_back: Sequence[CpuThrottling] = (CpuThrottling(0, 0, 0.0),)
    ) -> None:
        @contextlib.contextmanager
        def others_load(**_: object) -> Iterator[Callable[[], OthersLoad | None]]:
            yield lambda: load

        readings = list(held_back)
        monkeypatch.setattr(module, "watch_others_load", others_load)
        monkeypatch.setattr(processor_state, "read_cpu_throttling", lambda: _next(readings))

    machine()
    return machine


def seen(device: FakeDevice | None, block: Callable[[], object] = lambda: None, ours: tuple[int, ...] = ()) -> Any:
    with watch_block(device, ours) as disturbance:  # type: ignore[arg-type]
        block()
        return disturbance()


NO_DEVICE = None


def test_a_quiet_block() -> None:
    assert seen(NO_DEVICE) is None
    assert seen(FakeDevice()) is None


def test_compiled_in_the_first_block_and_not_in_the_next() -> None:
    torch._dynamo.reset()
    step = torch.compile(lambda x: x.sin().sum(), backend="aot_eager", dynamic=False)
    x = torch.ones(3, requires_grad=True)
    assert seen(NO_DEVICE, lambda: step(x).backward()) == Disturbance(Cause.RECOMPILED, "1 frame and 1 backward graph")
    assert seen(NO_DEVICE, lambda: step(x).backward()) is None
    assert seen(NO_DEVICE, lambda: step(torch.ones(4))) == Disturbance(Cause.RECOMPILED, "1 frame")


def test_compiled_just_before() -> None:
    torch._dynamo.reset()
    step = torch.compile(lambda x: x.sin(), backend="eager")
    step(torch.ones(3))
    assert seen(NO_DEVICE, lambda: step(torch.ones(3))) is None


@pytest.mark.parametrize(
    ("readings", "reason"),
    [
        ((QUIET, HOT), "HwThermalSlowdown"),
        ((HOT, QUIET), "HwThermalSlowdown"),
        ((QUIET, COUNTED), "SwThermalSlowdown"),
    ],
)
def test_a_throttled_device(readings: tuple[ThrottleReading, ...], reason: str) -> None:
    found = seen(FakeDevice(readings))
    assert found == Disturbance(Cause.THROTTLED, f"the device: {reason}")


def test_throttled_before_but_not_since() -> None:
    assert seen(FakeDevice((COUNTED, COUNTED))) is None


def test_processors_that_are_held_back(quiet: Callable[..., None]) -> None:
    begin = CpuThrottling(3, 3, 3.0)
    quiet(held_back=(begin, CpuThrottling(4, 3, 3.0)))
    assert seen(NO_DEVICE) == Disturbance(Cause.THROTTLED, "a processor got too hot")
    quiet(held_back=(begin, CpuThrottling(3, 4, 3.5)))
    found = seen(NO_DEVICE)
    assert found == Disturbance(Cause.THROTTLED, "the control group's processor time was used up once, for 0.500 s")
    quiet(held_back=(begin,))
    assert seen(NO_DEVICE) is None
    quiet(held_back=(CpuThrottling(None, None, None),))
    assert seen(NO_DEVICE) is None


@pytest.mark.parametrize(
    ("load", "share"),
    [
        (OthersLoad(1.1 * DISTURBED_SHARE, 1.0, 0.02), 22),
        (OthersLoad(0.9 * DISTURBED_SHARE, 1.0, 0.02), None),
        # A block of 40 ms on two processors: two ticks of 10 ms are within the error, three are not.
        (OthersLoad(0.02, 0.08, 0.02), None),
        (OthersLoad(0.03, 0.08, 0.02), 38),
        (OthersLoad(-0.01, 0.08, 0.02), None),
        (OthersLoad(0.0, 0.0, 0.02), None),
        (None, None),
    ],
)
def test_other_programs_on_the_processors(
    quiet: Callable[..., None], load: OthersLoad | None, share: int | None
) -> None:
    quiet(load)
    said = None if share is None else Disturbance(Cause.LOADED, f"other programs had {share} % of all processors")
    assert seen(NO_DEVICE) == said


def test_waiting_under_a_quota(quiet: Callable[..., None]) -> None:
    quiet(OthersLoad(0.3, 1.0, 0.0, waited=True))
    said = "it waited for processors 30 % of the time, within its quota"
    assert seen(NO_DEVICE) == Disturbance(Cause.LOADED, said)


@pytest.mark.parametrize(("share", "loaded"), [(None, False), (0.0, False), (0.19, False), (0.2, True), (0.9, True)])
def test_other_programs_on_the_device(share: float | None, loaded: bool) -> None:
    device = FakeDevice(share=share)
    found = seen(device, ours=(7,))
    said = f"other programs had {100 * (share or 0):.0f} % of the device"
    assert found == (Disturbance(Cause.LOADED, said) if loaded else None)
    assert device.ours == {7}


def test_first_of_several_causes_is_reported(quiet: Callable[..., None]) -> None:
    busy = OthersLoad(0.9, 1.0, 0.02)
    quiet(busy)
    found = seen(FakeDevice((HOT,), share=0.9))
    assert found is not None
    assert found.cause is Cause.THROTTLED


def test_on_the_real_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with watch_block(find_nvidia_device(torch.device("cpu"))) as disturbance:
        torch.ones(3).sin()
        found = disturbance()
    assert found is None or found.cause is not Cause.RECOMPILED


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_real_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    device = find_nvidia_device(torch.device("cuda"))
    assert device is not None
    x = torch.ones(1024, 1024, device="cuda")
    with watch_block(device) as disturbance:
        x @ x
        torch.cuda.synchronize()
        found = disturbance()
    assert found is None or found.cause is not Cause.RECOMPILED
