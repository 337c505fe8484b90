"""A profile is measured once, kept if it was taken under load, and replaced afterwards."""

import json
import os
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from frx_graph.errors import EvidenceError
from frx_graph.measure.machine import device_calibration, device_profile_cache
from frx_graph.measure.machine.device_calibration import (
    get_device_name,
)
from frx_graph.measure.machine.device_profile import DeviceProfile
from frx_graph.measure.machine.device_profile_cache import get_device_profile, measure_again

CPU = torch.device("cpu")
IMPOSSIBLE = DeviceProfile("cpu", "a processor", 2e10, {torch.float32: 1.4e9}, 64)
PROFILE = DeviceProfile(
    "cpu",
    "a processor",
    2e10,
    {torch.float32: 1e11, torch.bfloat16: 2e11},
    64,
    {torch.float32: "aten.convolution", torch.bfloat16: "aten.mm"},
)
UNDER_LOAD = replace(PROFILE, under_load=True)


@pytest.fixture
def calibrations(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """Stands in for the measurement, and records each time it is asked for."""
    asked: list[torch.device] = []

    def measured(device: torch.device) -> DeviceProfile:
        asked.append(device)
        return PROFILE

    monkeypatch.setattr(device_profile_cache, "calibrate", measured)
    monkeypatch.setattr(device_profile_cache, "watch_disturbance", lambda: nullcontext(lambda: False))
    return asked


def set_load(monkeypatch: pytest.MonkeyPatch, *, busy: bool) -> None:
    """Make other programs use the processors, or not, as a new process sees it."""
    monkeypatch.setattr(device_profile_cache, "watch_disturbance", lambda: nullcontext(lambda: busy))
    monkeypatch.setattr(device_profile_cache, "_CHECKED_ENTRIES", set())


def test_calibration_under_load_is_kept_and_marked(
    tmp_path: Path, calibrations: list[torch.device], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        set_load(monkeypatch, busy=True)
        assert get_device_profile("cpu", cache=tmp_path) == UNDER_LOAD
    assert len(calibrations) == 1
    (entry,) = tmp_path.iterdir()
    assert json.loads(entry.read_text())["under_load"] is True


def test_the_first_calibration_without_load_replaces_one_under_load(
    tmp_path: Path, calibrations: list[torch.device], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_load(monkeypatch, busy=True)
    get_device_profile("cpu", cache=tmp_path)
    set_load(monkeypatch, busy=False)
    assert get_device_profile("cpu", cache=tmp_path, measure=False) == UNDER_LOAD
    assert get_device_profile("cpu", cache=tmp_path) == PROFILE
    set_load(monkeypatch, busy=True)
    assert get_device_profile("cpu", cache=tmp_path) == PROFILE
    assert len(calibrations) == 2


def test_a_process_looks_once_if_the_load_has_ended(
    tmp_path: Path, calibrations: list[torch.device], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_load(monkeypatch, busy=True)
    get_device_profile("cpu", cache=tmp_path)
    get_device_profile("cpu", cache=tmp_path)
    slept: list[float] = []
    monkeypatch.setattr(device_profile_cache.time, "sleep", slept.append)
    get_device_profile("cpu", cache=tmp_path)
    assert slept == []


def test_a_second_calibration_that_fails_leaves_the_one_under_load(
    tmp_path: Path, calibrations: list[torch.device], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_load(monkeypatch, busy=True)
    get_device_profile("cpu", cache=tmp_path)
    set_load(monkeypatch, busy=False)
    monkeypatch.setattr(device_profile_cache, "calibrate", lambda _device: IMPOSSIBLE)
    assert get_device_profile("cpu", cache=tmp_path) == UNDER_LOAD


def test_a_requested_calibration_under_load_replaces_one_under_load(
    tmp_path: Path, calibrations: list[torch.device], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_load(monkeypatch, busy=True)
    assert measure_again("cpu", cache=tmp_path) == UNDER_LOAD
    assert measure_again("cpu", cache=tmp_path) == UNDER_LOAD
    assert get_device_profile("cpu", cache=tmp_path, measure=False) == UNDER_LOAD


def test_implausible_calibration_is_neither_used_nor_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_profile_cache, "calibrate", lambda _device: IMPOSSIBLE)
    for measured in (get_device_profile, measure_again):
        with pytest.raises(EvidenceError, match=r"1\.4 GFLOP/s .* frx doctor --measure"):
            measured("cpu", cache=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_new_measurement_replaces_what_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_profile_cache, "watch_disturbance", lambda: nullcontext(lambda: False))
    monkeypatch.setattr(device_profile_cache, "calibrate", lambda _device: replace(PROFILE, bandwidth_bytes_per_s=1e10))
    get_device_profile("cpu", cache=tmp_path)
    monkeypatch.setattr(device_profile_cache, "calibrate", lambda _device: PROFILE)
    assert measure_again("cpu", cache=tmp_path) == PROFILE
    assert get_device_profile("cpu", cache=tmp_path, measure=False) == PROFILE


def test_a_disturbed_new_measurement_replaces_nothing(
    tmp_path: Path, calibrations: list[torch.device], monkeypatch: pytest.MonkeyPatch
) -> None:
    get_device_profile("cpu", cache=tmp_path)
    (entry,) = tmp_path.iterdir()
    before = entry.read_text()
    monkeypatch.setattr(device_profile_cache, "watch_disturbance", lambda: nullcontext(lambda: True))
    with pytest.raises(EvidenceError, match="other programs"):
        measure_again("cpu", cache=tmp_path)
    assert entry.read_text() == before


def test_a_new_measurement_that_cannot_be_written_is_an_error(tmp_path: Path, calibrations: list[torch.device]) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(EvidenceError, match="FRX_CACHE_DIR"):
        measure_again("cpu", cache=tmp_path / "file" / "below")


def test_entries_of_the_first_version_are_measured_again(tmp_path: Path, calibrations: list[torch.device]) -> None:
    get_device_profile("cpu", cache=tmp_path)
    (entry,) = tmp_path.iterdir()
    fields = json.loads(entry.read_text()) | {"version": "frx_device_profile_v1"}
    del fields["peak_kernels"], fields["under_load"]
    entry.write_text(json.dumps(fields))
    with pytest.raises(EvidenceError, match="not measured yet"):
        get_device_profile("cpu", cache=tmp_path, measure=False)
    assert get_device_profile("cpu", cache=tmp_path) == PROFILE
    assert len(calibrations) == 2


def test_profile_is_measured_once_and_then_read(tmp_path: Path, calibrations: list[torch.device]) -> None:
    assert get_device_profile("cpu", cache=tmp_path) == PROFILE
    assert get_device_profile(CPU, cache=tmp_path) == PROFILE
    assert calibrations == [CPU]


def test_other_thread_counts_are_measured_apart(tmp_path: Path, calibrations: list[torch.device]) -> None:
    get_device_profile("cpu", cache=tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        get_device_profile("cpu", cache=tmp_path)
    finally:
        torch.set_num_threads(threads)
    assert len(calibrations) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("20000000000.0", "NaN"),
        lambda text: text.replace("20000000000.0", "-1.0"),
        lambda text: text.replace("frx_device_profile_v2", "frx_device_profile_v0"),
        lambda text: text.replace('"bfloat16": "aten.mm"', '"float16": "aten.mm"'),
        lambda text: text.replace("100000000000.0", "1400000000.0"),
        lambda text: text.replace('"cpu"', '"abacus"'),
        lambda _text: "\x00\xff",
    ],
)
def test_a_damaged_entry_is_measured_again(damage, tmp_path: Path, calibrations: list[torch.device]) -> None:
    get_device_profile("cpu", cache=tmp_path)
    (entry,) = tmp_path.iterdir()
    before = entry.read_text()
    assert damage(before) != before
    entry.write_text(damage(before))
    assert get_device_profile("cpu", cache=tmp_path) == PROFILE
    assert len(calibrations) == 2
    assert json.loads(entry.read_text()) == json.loads(before)


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path, calibrations: list[torch.device]) -> None:
    (tmp_path / "file").write_text("not a directory")
    assert get_device_profile("cpu", cache=tmp_path / "file" / "below") == PROFILE


def test_environment_variable_names_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calibrations: list[torch.device]
) -> None:
    monkeypatch.setenv("FRX_CACHE_DIR", os.fspath(tmp_path / "here"))
    get_device_profile("cpu")
    assert len(list((tmp_path / "here").iterdir())) == 1


def test_without_measuring_an_unknown_device_is_an_error(tmp_path: Path, calibrations: list[torch.device]) -> None:
    with pytest.raises(EvidenceError, match="not measured yet"):
        get_device_profile("cpu", cache=tmp_path, measure=False)
    get_device_profile("cpu", cache=tmp_path)
    assert get_device_profile("cpu", cache=tmp_path, measure=False) == PROFILE


def test_another_processor_generation_is_calibrated_separately(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calibrations: list[torch.device]
) -> None:
    for name in ("AMD EPYC 25.17.1", "AMD EPYC 26.2.1", "AMD EPYC 25.17.1"):
        monkeypatch.setattr(device_calibration, "read_cpu_name", lambda name=name: name)
        assert get_device_name(CPU) == name
        get_device_profile("cpu", cache=tmp_path)
    assert len(calibrations) == 2
