"""What steps allocate and keep: exact bytes of small programs, and planted faults."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor, nn
from torch.profiler import profile

from frx_graph.errors import EvidenceError
from frx_graph.measure import memory_use
from frx_graph.measure.memory_use import (
    PEAK_FLOOR_BYTES,
    MemoryFault,
    MemoryRecord,
    MemoryUse,
    StepMemory,
    WorseMemory,
    compare_memory,
    observe_memory,
)

MEGABYTE = 2**20
RECORDS = TypeAdapter(MemoryRecord)
WITH_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture(autouse=True)
def keep_earlier_tests_out(request: pytest.FixtureRequest) -> None:
    """Keep the tensors of earlier tests out of all counts. Integration tests collect them, which takes seconds; the
    others freeze them."""
    slow = request.node.get_closest_marker("integration")
    request.getfixturevalue("nothing_frozen" if slow else "program_froze_nothing")


@pytest.fixture
def nothing_frozen() -> Iterator[None]:
    gc.unfreeze()
    gc.collect()
    yield
    gc.freeze()


def block(megabytes: int = 1, device: str = "cpu") -> Tensor:
    return torch.ones(megabytes * MEGABYTE // 4, device=device)


def faults(baseline: MemoryRecord, candidate: MemoryRecord, headroom: float = 0.1) -> list[MemoryFault]:
    return [found.fault for found in compare_memory(baseline, candidate, headroom)]


def training(backend: str) -> Callable[[], object]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    program, x = torch.compile(model, backend=backend), torch.randn(64, 256)

    def step() -> None:
        program(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@pytest.mark.integration
def test_a_steps_peak_is_exact() -> None:
    def step() -> Tensor:
        first, second = block(2), block(3)
        del first
        return second + block(1)[:1]

    memory = observe_memory(step)
    # 2 + 3 together; later 3, the 1 that is sliced, and the sum of 3.
    assert set(memory.host.steps) == {StepMemory(7 * MEGABYTE, 0)}
    assert memory.host.growth_bytes == 0
    assert RECORDS.validate_json(RECORDS.dump_json(memory)) == memory


@pytest.mark.integration
def test_what_onednn_has_packed_is_live() -> None:
    before = observe_memory(lambda: None).host.live_bytes
    weight = torch.ones(512, 512, 1, 1)
    packed = torch.ops.mkldnn._reorder_convolution_weight(weight, [0, 0], [1, 1], [1, 1], 1, [1, 512, 8, 8])
    # Without AVX-512 its blocks are of 24 channels, to which 512 are rounded up.
    rounded = torch.ops.mkldnn._nbytes(packed)
    assert MEGABYTE <= rounded < 1.1 * MEGABYTE
    assert observe_memory(lambda: None).host.live_bytes - before == MEGABYTE + rounded
    assert packed.is_mkldnn


@pytest.mark.integration
def test_what_is_live_before_counts_each_storage_once() -> None:
    before = observe_memory(lambda: None).host.live_bytes
    held = block(4)
    views = [held[1:], held.view(2, -1), nn.Parameter(held)]
    assert observe_memory(lambda: None).host.live_bytes - before == 4 * MEGABYTE
    assert len(views) == 3


@pytest.mark.integration
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_training_grows_in_its_first_step_and_never_again(backend: str, nothing_compiled: None) -> None:
    memory = observe_memory(training(backend))
    parameters = 4 * (256 * 256 + 256 + 256 * 8 + 8)
    assert memory.host.steps[0].kept_bytes >= parameters  # of the momentum
    assert [step.kept_bytes for step in memory.host.steps[1:]] == [0] * 4
    assert memory.host.growth_bytes == 0
    assert faults(memory, memory) == []
    assert memory.host.steps[-1].peak_bytes >= parameters  # of the gradients


@pytest.mark.integration
def test_compiled_code_allocates_what_is_recorded(nothing_compiled: None) -> None:
    program = torch.compile(lambda x: ((x + 1) @ x).relu(), backend="inductor")
    x = torch.randn(256, 256)
    steps = observe_memory(lambda: program(x)).host.steps
    assert steps[-1] == StepMemory(2 * 4 * 256 * 256, 0)


def test_leak_in_every_step_is_reported() -> None:
    kept: list[Tensor] = []
    baseline = observe_memory(lambda: block(8))
    candidate = observe_memory(lambda: kept.append(block(1)))
    assert [step.kept_bytes for step in candidate.host.steps] == [MEGABYTE] * 5
    (found,) = compare_memory(baseline, candidate, 10.0)
    assert found == WorseMemory(MemoryFault.LEAK, "host", 0, MEGABYTE)
    # A program that keeps its losses keeps them in both arms.
    assert faults(candidate, candidate) == []


def test_leak_in_the_first_steps_is_reported_as_a_peak() -> None:
    kept: list[Tensor] = []

    def leaking() -> Tensor:
        if len(kept) < 2:
            kept.append(block(8))
        return block(1)

    baseline, candidate = observe_memory(lambda: block(1)), observe_memory(leaking)
    assert candidate.host.growth_bytes == 0
    assert candidate.host.peak_bytes - candidate.host.live_bytes == 17 * MEGABYTE
    assert MemoryFault.LEAK not in faults(baseline, candidate)
    baseline = dataclasses.replace(baseline, host=dataclasses.replace(baseline.host, live_bytes=0))
    candidate = dataclasses.replace(candidate, host=dataclasses.replace(candidate.host, live_bytes=0))
    assert faults(baseline, candidate) == [MemoryFault.PEAK]


def test_copies_of_what_was_live_before_are_allowed_for() -> None:
    def record(live: int, peak: int) -> MemoryRecord:
        step = StepMemory(peak * MEGABYTE, 0)
        return MemoryRecord(MemoryUse(live * MEGABYTE, (step,) * 3), None, (0,) * 6)

    baseline, candidate = record(20, 10), record(58, 10)
    assert not compare_memory(baseline, candidate, 0.0, copies=2.0)
    for copies in (0.0, 1.5):
        assert [one.fault for one in compare_memory(baseline, candidate, 0.1, copies)] == [MemoryFault.PEAK]


@pytest.mark.integration
def test_doubled_memory_is_reported_and_headroom_is_allowed() -> None:
    def record(megabytes: int) -> MemoryRecord:
        return MemoryRecord(MemoryUse(0, observe_memory(lambda: block(megabytes)).host.steps), None, (1, 1, 1, 1, 1))

    forty, more, eighty = record(40), record(44), record(80)
    assert faults(forty, eighty) == [MemoryFault.PEAK]
    assert faults(forty, more) == []
    assert faults(forty, more, 0.05) == [MemoryFault.PEAK]
    assert faults(eighty, forty) == []


def test_small_increase_of_the_peak_is_not_reported() -> None:
    def record(peak_bytes: int) -> MemoryRecord:
        return MemoryRecord(MemoryUse(0, (StepMemory(peak_bytes, 0),) * 5), None, (1,) * 5)

    assert faults(record(4 * MEGABYTE), record(4 * MEGABYTE + PEAK_FLOOR_BYTES)) == []
    assert faults(record(4 * MEGABYTE), record(4 * MEGABYTE + PEAK_FLOOR_BYTES + 1)) == [MemoryFault.PEAK]


def test_filling_cache_and_replaced_buffer_are_not_leaks() -> None:
    cache: dict[int, Tensor] = {}
    state = [block(4)]

    def step() -> None:
        cache.setdefault(0, block(2))
        state[0] = state[0] * 0.5

    memory = observe_memory(step)
    assert [found.kept_bytes for found in memory.host.steps] == [6 * MEGABYTE, 0, 0, 0, 0]
    assert memory.host.growth_bytes == 0


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([(1, 8), (2, -8)], 0),
        ([(1, 8), (1, -8)], 0),
        ([(1, -8), (2, 4)], 4),
        ([(1, -8)], 0),
        ([(1, -8), (2, 4), (3, -4), (4, 2)], 2),
    ],
    ids=["freed", "freed at once", "older", "older alone", "older, then freed"],
)
def test_what_was_there_before_is_not_freed(changes: list[tuple[int, int]], expected: int) -> None:
    assert sum(size for _, size in memory_use._drop_older_frees(changes)) == expected


@pytest.mark.integration
def test_what_takes_the_place_of_something_that_was_watched_is_not_freed_with_its_size() -> None:
    kept: list[Tensor] = []
    # The system may give that memory to nobody at first.
    for _ in range(3):
        observe_memory(lambda: kept or kept.append(block(8)))
        place = kept.pop().data_ptr()
        held = [block(4)]
        while held[-1].data_ptr() != place and len(held) < 64:
            held.append(block(4))
        state = [held.pop()]

        def step(state: list[Tensor] = state) -> None:
            state[0] = state[0] * 0.5

        assert [found.kept_bytes for found in observe_memory(step).host.steps] == [4 * MEGABYTE, 0, 0, 0, 0]


def test_garbage_in_cycles_is_not_kept() -> None:
    def step() -> None:
        cycle: list[object] = [block(1)]
        cycle.append(cycle)

    assert [found.kept_bytes for found in observe_memory(step).host.steps] == [0] * 5


@pytest.mark.integration
def test_nothing_stays_frozen() -> None:
    observe_memory(lambda: None)
    assert gc.get_freeze_count() == 0


def test_resident_memory_is_watched_for_twice_as_many_steps() -> None:
    ran: list[None] = []
    memory = observe_memory(lambda: ran.append(None), steps=4)
    assert (len(memory.host.steps), len(memory.resident_bytes), len(ran)) == (4, 8, 12)


@pytest.mark.integration
def test_memory_that_torch_does_not_allocate_shows_as_resident() -> None:
    kept: list[object] = []
    # glibc maps blocks of over 32 MiB by themselves. Smaller ones may fill memory that the process holds already.
    baseline = observe_memory(lambda: np.ones(5 * MEGABYTE))
    candidate = observe_memory(lambda: kept.append(np.ones(5 * MEGABYTE)))
    assert candidate.host.growth_bytes == 0
    assert candidate.resident_growth_bytes > 30 * MEGABYTE
    assert faults(baseline, candidate) == [MemoryFault.RESIDENT_LEAK]
    assert faults(candidate, candidate) == []


@pytest.mark.parametrize(
    ("resident", "growth"),
    [
        ((10, 20, 30, 40, 50), 10),
        ((10, 90, 90, 90, 90), 0),
        ((10, 20, 30, 40, 40), 0),
        ((10, 20, 30, 20, 50), 0),
        ((50, 40, 30, 20, 10), 0),
    ],
)
def test_resident_memory_grows_only_if_every_later_step_makes_it_grow(resident: tuple[int, ...], growth: int) -> None:
    assert MemoryRecord(MemoryUse(0, ()), None, resident).resident_growth_bytes == growth


def test_too_few_steps_and_other_numbers_of_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="2 steps"):
        observe_memory(lambda: None, 2)
    with pytest.raises(ValueError, match="3 steps of the baseline, 4 of the candidate"):
        compare_memory(observe_memory(lambda: None, 3), observe_memory(lambda: None, 4), 0.1)


def test_a_running_profiler_is_not_disturbed() -> None:
    with profile(), pytest.raises(EvidenceError, match="already running"):
        observe_memory(lambda: None)


def test_an_error_of_the_step_ends_the_profiler() -> None:
    def fails() -> None:
        raise RuntimeError("the step's own")

    with pytest.raises(RuntimeError, match="the step's own"):
        observe_memory(fails)
    assert observe_memory(lambda: None).host.growth_bytes == 0


@pytest.mark.parametrize(
    ("baseline", "candidate", "found"),
    [
        (None, MemoryUse(0, (StepMemory(8 * MEGABYTE, 0),) * 5), [MemoryFault.PEAK]),
        (MemoryUse(100, (StepMemory(8, 0),) * 5), None, []),
        (MemoryUse(100, (StepMemory(8, 0),) * 5), MemoryUse(100, (StepMemory(9, 0),) * 5), []),
        (MemoryUse(100, (StepMemory(8, 0),) * 5), MemoryUse(100, (StepMemory(8, 1),) * 5), [MemoryFault.LEAK]),
    ],
)
def test_a_devices_memory_is_compared_as_the_hosts(
    baseline: MemoryUse | None, candidate: MemoryUse | None, found: list[MemoryFault]
) -> None:
    host = MemoryUse(0, (StepMemory(0, 0),) * 5)
    sides = [MemoryRecord(host, device, (1, 1, 1, 1, 1)) for device in (baseline, candidate)]
    assert faults(sides[0], sides[1]) == found


@pytest.mark.cuda
@WITH_CUDA
def test_a_gpus_peak_and_leak() -> None:
    kept: list[Tensor] = []
    block(1, "cuda")
    baseline = observe_memory(lambda: block(2, "cuda") + block(2, "cuda"))
    candidate = observe_memory(lambda: kept.append(block(2, "cuda")))
    assert baseline.device is not None
    assert baseline.device.steps == (StepMemory(6 * MEGABYTE, 0),) * 5
    assert candidate.device is not None
    assert candidate.device.growth_bytes == 2 * MEGABYTE
    assert MemoryFault.LEAK in faults(baseline, candidate, 10.0)
