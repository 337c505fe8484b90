"""Names and units of metrics: every one that is asked for is read again."""

from __future__ import annotations

import pytest

from frx_graph.evidence.ncu.metrics import BY_NAME, COUNT, METRICS, resolve_metric
from frx_graph.evidence.ncu.presets import PRESETS, build_ncu_arguments, format_shell_line


def test_names_are_used_once() -> None:
    assert len(BY_NAME) == len(METRICS)
    counters = [counter for metric in METRICS for counter in metric.counters]
    assert len(set(counters)) == len(counters)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_each_name_is_read_as_its_metric(metric) -> None:
    unit = "" if metric.unit == COUNT else metric.unit
    for name in (*metric.counters, *metric.labels):
        read = resolve_metric(name, unit)
        assert read is not None
        assert (read.name, read.factor) == (metric.name, 1.0)


def test_unused_metric_is_skipped_but_a_wrong_unit_is_refused() -> None:
    assert resolve_metric("some__other_counter.sum", "furlong") is None
    for unit in ("furlong", "byte", ""):
        with pytest.raises(ValueError, match="Duration"):
            resolve_metric("Duration", unit)
    with pytest.raises(ValueError, match="Registers"):
        resolve_metric("Registers Per Thread", "byte")


@pytest.mark.parametrize("preset", PRESETS.values(), ids=lambda preset: preset.name)
def test_preset_counters_are_known(preset) -> None:
    assert len(set(preset.counters)) == len(preset.counters)
    for counter in preset.counters:
        assert any(read_with(counter, unit) for unit in ("", "%", "s", "byte", "byte/s", "hz"))


def read_with(counter: str, unit: str) -> bool:
    try:
        return resolve_metric(counter, unit) is not None
    except ValueError:
        return False


def test_full_preset_includes_the_others() -> None:
    full = PRESETS["full"]
    assert full.stalls
    for preset in PRESETS.values():
        assert set(preset.metrics) <= set(full.metrics)


def test_a_command_can_be_pasted_into_a_shell() -> None:
    arguments = build_ncu_arguments(
        PRESETS["memory"],
        ["python", "train it.py", "$HOME"],
        output="out put.csv",
        kernel="regex:a|b",
        launch_skip=0,
        launch_count=3,
    )
    assert arguments[:1] + arguments[-3:] == ["ncu", "python", "train it.py", "$HOME"]
    line = format_shell_line(arguments)
    assert "--kernel-name 'regex:a|b' --launch-skip 0 --launch-count 3 --log-file 'out put.csv'" in line
    assert line.endswith("python 'train it.py' '$HOME'")
