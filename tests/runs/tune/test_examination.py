from __future__ import annotations

import pytest

from frx_graph.evidence.run.bundle_layout import GPU_METRICS
from frx_graph.runs.collect.sampling import DEVICE_HEADER
from frx_graph.runs.tune.examination import read_device_figures, sample_devices


def test_samples_are_read(tmp_path):
    rows = (
        b"2026-01-01T00:00:00.000000+00:00, 0, 20, 10, 4096, 8192, 1, 1, 40, 100\n"
        b"2026-01-01T00:00:01.000000+00:00, 0, 60, 10, 7372, 8192, 1, 1, 40, 100\n"
        b"2026-01-01T00:00:01.000000+00:00, 1, [N/A], 10, [N/A], 8192, 1, 1, 40, 100\n"
    )
    (tmp_path / GPU_METRICS).write_bytes(DEVICE_HEADER + rows)
    busy, ratio = read_device_figures(tmp_path)
    assert busy == 40
    assert ratio == pytest.approx(0.9, abs=1e-3)


def test_without_devices_nothing_is_known(tmp_path):
    with sample_devices(tmp_path, 0.01, {"CUDA_VISIBLE_DEVICES": ""}):
        pass
    assert not (tmp_path / GPU_METRICS).exists()
    assert read_device_figures(tmp_path) == (None, None)
    (tmp_path / GPU_METRICS).write_text("nonsense")
    assert read_device_figures(tmp_path) == (None, None)
