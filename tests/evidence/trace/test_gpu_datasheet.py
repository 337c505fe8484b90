"""Device names as drivers report them: listed ones find their own data sheet, their relatives find none."""

from __future__ import annotations

import pytest

from frx_graph.evidence.trace.gpu_datasheet import peaks_of


@pytest.mark.parametrize(
    ("device_name", "listed"),
    [
        ("Tesla V100-SXM2-16GB", "V100 SXM2"),
        ("Tesla V100-DGXS-32GB", "V100 SXM2"),
        ("Tesla V100-PCIE-32GB", "V100 PCIe"),
        ("A100-SXM4-40GB", "A100 40GB"),
        ("NVIDIA A100-PCIE-40GB", "A100 40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB SXM"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H200", "H200"),
        ("Tesla T4", "T4"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("AMD Instinct MI300X", "MI300X"),
        ("AMD Instinct MI250", "MI250 (one die)"),
        ("AMD Instinct MI250X", "MI250X (one die)"),
        ("AMD Instinct MI210", "MI250 (one die)"),
    ],
)
def test_listed_device(device_name: str, listed: str) -> None:
    peaks = peaks_of(device_name)
    assert peaks is not None
    assert peaks.name == listed


@pytest.mark.parametrize(
    "device_name",
    [
        "NVIDIA GH200 480GB",
        "NVIDIA H200 NVL",
        "NVIDIA H100 NVL",
        "NVIDIA A100X",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "Tesla V100S-PCIE-32GB",
        "Tesla V100-SXM3-32GB",
        "NVIDIA L40",
        "NVIDIA T4G",
        "AMD Instinct MI300A",
        "",
    ],
)
def test_relative_of_a_listed_device_is_not_listed(device_name: str) -> None:
    assert peaks_of(device_name) is None


def test_units() -> None:
    peaks = peaks_of("NVIDIA H100 80GB HBM3")
    assert peaks is not None
    assert peaks.bandwidth_bytes_per_s == pytest.approx(3.35e12)
    assert peaks.float32_flops == pytest.approx(67e12)
    assert peaks.tensor_flops == pytest.approx(989e12)
