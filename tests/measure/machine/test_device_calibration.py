import itertools
import platform
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from frx_graph.errors import OptionError
from frx_graph.measure.machine import device_calibration
from frx_graph.measure.machine.device_calibration import (
    CONVOLUTION,
    PACKED_PRODUCT,
    PRODUCT,
    Peak,
    PeakKernel,
    calibrate,
    get_preferred_alignment,
    list_peak_kernels,
    measure_bandwidth,
    measure_kernel_flops,
    measure_peak,
    read_cpu_name,
    read_last_level_cache,
)
from frx_graph.measure.machine.device_profile import find_implausibility
from frx_graph.measure.machine.device_profile_cache import get_device_profile
from frx_graph.serialization.torch_settings import read_torch_settings

CPU = torch.device("cpu")


@pytest.mark.integration
def test_calibration_of_this_cpu_is_plausible() -> None:
    profile = calibrate("cpu")
    assert profile.device == "cpu"
    assert profile.name
    assert 1e8 < profile.bandwidth_bytes_per_s < 1e13
    assert 1e8 < profile.peak_flops[torch.float32] < 1e15
    assert profile.preferred_alignment_bytes in (16, 32, 64)
    ridge = profile.get_ridge_point(torch.float32)
    assert ridge == pytest.approx(profile.peak_flops[torch.float32] / profile.bandwidth_bytes_per_s)
    assert profile.get_ridge_point(torch.float64) is None
    assert profile.peak_kernels.keys() == profile.peak_flops.keys()


@pytest.mark.integration
def test_a_device_is_measured_by_what_it_does_also_while_a_graph_is_traced() -> None:
    with FakeTensorMode():
        profile = calibrate("cpu")
    # Fake tensors are copied, and multiplied, in no time. A busy machine may be too slow to be true.
    reason = str(find_implausibility(profile))
    assert "faster than any" not in reason
    assert "of all its cores" not in reason


@pytest.mark.integration
def test_precision_settings_survive_a_calibration() -> None:
    torch.set_float32_matmul_precision("medium")
    before = read_torch_settings()
    calibrate("cpu")
    assert read_torch_settings() == before


def test_bandwidth_counts_bytes_read_and_written_of_the_fastest_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_calibration, "_choose_buffer_bytes", lambda _device: 4000)
    ticks = itertools.chain.from_iterable((0.0, seconds) for seconds in (9.0, 2.0, 1.0, 2.0, 7.0, 3.0, 3.0))
    assert measure_bandwidth(CPU, lambda: next(ticks)) == 2 * 4000 / 1.0


def test_peak_is_that_of_the_fastest_product_and_growth_stops_at_slow_ones() -> None:
    ticks = itertools.chain.from_iterable((0.0, seconds) for seconds in (1.0, 0.5, 2.0))
    assert measure_kernel_flops(PRODUCT, CPU, torch.float32, lambda: next(ticks)) == 2 * 256**3 / 0.5
    assert next(ticks, None) is None


def test_short_calls_are_repeated_more_often() -> None:
    calls: list[int] = []
    ticks = itertools.count(step=0.001)
    short = PeakKernel("short", lambda _device, _dtype, size: (lambda: calls.append(size) or torch.empty(0), 10**6))
    assert measure_kernel_flops(short, CPU, torch.float32, lambda: next(ticks)) == pytest.approx(1e9)
    assert calls.count(256) in (20, 21)


def test_a_dtype_without_kernels_has_no_peak() -> None:
    assert measure_peak(CPU, torch.bool, lambda: 0.0) is None


@pytest.mark.parametrize("fastest", [0, 1, 2])
def test_the_peak_is_that_of_the_fastest_kernel(fastest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = list_peak_kernels("cpu")
    assert kernels == (PRODUCT, PACKED_PRODUCT, CONVOLUTION)
    speeds = dict.fromkeys(kernels, 1e11) | {kernels[fastest]: 4e11}
    monkeypatch.setattr(device_calibration, "measure_kernel_flops", lambda kernel, *_rest: speeds[kernel])
    assert measure_peak(CPU, torch.float32, lambda: 0.0) == Peak(4e11, kernels[fastest].name)


def test_a_kernel_that_the_device_lacks_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = {PRODUCT: 1e9, PACKED_PRODUCT: None, CONVOLUTION: None}
    monkeypatch.setattr(device_calibration, "measure_kernel_flops", lambda kernel, *_rest: speeds[kernel])
    assert measure_peak(CPU, torch.float16, lambda: 0.0) == Peak(1e9, "aten.mm")


def test_without_onednn_its_product_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_calibration, "is_onednn_enabled", lambda: False)
    assert list_peak_kernels("cpu") == (PRODUCT, CONVOLUTION)
    assert list_peak_kernels("cuda") == (PRODUCT, CONVOLUTION)


@pytest.mark.parametrize("kernel", [PRODUCT, PACKED_PRODUCT, CONVOLUTION], ids=lambda kernel: kernel.name)
def test_flops_of_a_kernel_are_those_that_torch_counts(kernel: PeakKernel) -> None:
    call, flops = kernel.prepare(CPU, torch.float32, 256)
    with FlopCounterMode(display=False) as counter:
        result = call()
    # torch counts no FLOPs of oneDNN's own operators.
    assert counter.get_total_flops() in (flops, 0 if kernel is PACKED_PRODUCT else flops)
    assert result.sum() > 0


@pytest.mark.parametrize(
    ("device", "message"),
    [("nonsense", "unknown device 'nonsense'"), ("mps", "'mps' cannot be measured")],
)
def test_devices_that_cannot_be_measured(device: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        calibrate(device)


def test_cuda_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(OptionError, match="'cuda:1' is not on this machine"):
        get_device_profile("cuda:1")


def test_cuda_index_out_of_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(OptionError, match="cuda:0 to cuda:1"):
        get_device_profile("cuda:2")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_calibration_of_a_gpu(tmp_path: Path) -> None:
    profile = get_device_profile("cuda", cache=tmp_path)
    assert profile.name == torch.cuda.get_device_name()
    assert profile.preferred_alignment_bytes == 16
    assert 5e10 < profile.bandwidth_bytes_per_s < 5e13
    assert profile.peak_flops[torch.bfloat16] > profile.peak_flops[torch.float32]


def test_alignment_follows_the_vector_width(monkeypatch: pytest.MonkeyPatch) -> None:
    for capability, width in (("AVX512", 64), ("AVX2", 32), ("DEFAULT", 16)):
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda name=capability: name)
        assert get_preferred_alignment("cpu") == width
    assert get_preferred_alignment("cuda") == 16


def test_last_level_cache_is_the_largest(tmp_path: Path) -> None:
    for index, size in enumerate(("32K\n", "32K", "1024K", "96M", "unreadable")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(size)
    assert read_last_level_cache(tmp_path) == 96 * 2**20
    assert read_last_level_cache(tmp_path / "absent") == 32 * 2**20


X86 = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC
stepping\t: 1
cache size\t: 1024 KB
"""
ARM = """processor\t: 0
BogoMIPS\t: 243.75
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1
"""


def named(folder: Path, text: str) -> str:
    file = folder / "cpuinfo"
    file.write_text(text)
    return read_cpu_name(file)


def test_generations_with_one_marketing_name_are_distinguished(tmp_path: Path) -> None:
    assert named(tmp_path, X86) == "AMD EPYC 25.17.1"
    assert named(tmp_path, X86.replace("model\t\t: 17", "model\t\t: 2")) == "AMD EPYC 25.2.1"


def test_the_first_processor_counts(tmp_path: Path) -> None:
    assert named(tmp_path, f"{X86}\n{X86.replace('EPYC', 'Ryzen')}") == "AMD EPYC 25.17.1"


def test_arm_processor_is_named_by_its_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert named(tmp_path, ARM) == "aarch64 0x41.0x3.0xd0c.1"


@pytest.mark.parametrize("text", ["", "nonsense", "model name\t:\n"])
def test_cpu_name_falls_back_to_the_architecture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert named(tmp_path, text) == "riscv64"
    assert read_cpu_name(tmp_path / "missing") == "riscv64"
