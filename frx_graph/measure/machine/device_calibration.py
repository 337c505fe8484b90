"""Measure a device's bandwidth and peak arithmetic.

Bandwidth is the speed of torch's copy of a buffer that no cache can hold. It counts bytes read plus bytes written, like
all traffic in this package. Peak arithmetic is the speed of the fastest kernel for each dtype: torch's square matrix
product, oneDNN's inner product with a packed weight, or a channels-last convolution. No single one is the fastest
everywhere. In fp32 torch's product is MKL's, which reaches less than half of oneDNN's speed on some processors; in
emulated fp16 the convolution is over ten times as fast as the product (AMD Genoa, torch 2.15).
"""

from __future__ import annotations

import contextlib
import platform
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from frx_graph.errors import OptionError
from frx_graph.measure.machine.device_profile import DeviceProfile
from frx_graph.support.torch_internals import disable_current_modes, is_onednn_enabled

Clock = Callable[[], float]

CALIBRATED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)

_COPY_REPEATS = 7
_CACHES_EXCEEDED = 4
"""Buffers are this many times the last-level cache: at most a quarter of a buffer is still cached from last time."""
_LEAST_BUFFER_BYTES = 64 * 2**20
_MEMORY_SHARE = 8
"""A buffer takes at most one in this many bytes of the free memory."""
_UNKNOWN_CACHE_BYTES = 32 * 2**20

_KERNEL_REPEATS = 3
_MOST_KERNEL_REPEATS = 50
_REPEATED_SECONDS = 0.02
"""A short kernel is repeated for this long, so that one call may run between two time slices of other programs."""
_LEAST_SIZE = 256
_GREATEST_SIZE = {"cpu": 2048, "cuda": 8192}
_KERNEL_SECONDS = 0.1
"""No kernel that is expected to take longer than this is started: emulated dtypes reach 0.2 GFLOP/s on a CPU."""
_IMAGE = 16
"""Height and width of a convolution's result. Without padding each result takes the full number of products."""
_WINDOW = 3

_VECTOR_BYTES = {"AVX512": 64, "AVX2": 32, "SVE256": 32}
"""`torch.backends.cpu.get_cpu_capability()` → bytes of a vector register (`ATen/cpu/vec/vec_base.h`, VECTOR_WIDTH)."""
_LEAST_VECTOR_BYTES = 16
"""SSE, NEON, SVE128, VSX and Z vectors are all 128 bits wide."""
_TENSOR_CORE_BYTES = 16
"""cuBLAS and cuDNN run tensor cores at full rate when dimensions are multiples of 16 bytes (NVIDIA, "Matrix
Multiplication Background User's Guide", tensor core requirements)."""


def calibrate(device: torch.device | str, *, clock: Clock = time.perf_counter) -> DeviceProfile:
    """Measure `device` now, in about two seconds on two CPU cores, using torch's current number of threads; also where
    the caller's tensors are fake.

    Raises `OptionError` for a device that this machine or this function does not have.
    """
    resolved = resolve_device(device)
    with disable_current_modes(), torch.inference_mode(), _use_ieee_arithmetic(resolved.type):
        bandwidth = measure_bandwidth(resolved, clock)
        measured = {dtype: measure_peak(resolved, dtype, clock) for dtype in CALIBRATED_DTYPES}
    peaks = {dtype: peak for dtype, peak in measured.items() if peak is not None}
    return DeviceProfile(
        device=resolved.type,
        name=get_device_name(resolved),
        bandwidth_bytes_per_s=bandwidth,
        peak_flops={dtype: peak.flops_per_s for dtype, peak in peaks.items()},
        peak_kernels={dtype: peak.kernel for dtype, peak in peaks.items()},
        preferred_alignment_bytes=get_preferred_alignment(resolved.type),
    )


def measure_bandwidth(device: torch.device, clock: Clock) -> float:
    """Bytes per second, read plus written, of a copy between two buffers larger than the caches.

    The fastest of several counts, as for the peaks: interference from outside only ever slows a copy.
    """
    elements = _choose_buffer_bytes(device) // torch.float32.itemsize
    source = torch.ones(elements, device=device)
    target = torch.zeros(elements, device=device)
    target.copy_(source)
    return 2 * source.nbytes / _time_fastest(lambda: target.copy_(source), device, clock, _COPY_REPEATS)


@dataclass(frozen=True, slots=True)
class Peak:
    """FLOP/s of the fastest kernel, and its name."""

    flops_per_s: float
    kernel: str


@dataclass(frozen=True, slots=True)
class PeakKernel:
    """A kernel that may reach the peak. `prepare` makes a call of a given size, on a device and in a dtype, and returns
    it with its FLOPs. They grow with the third power of the size."""

    name: str
    prepare: Callable[[torch.device, torch.dtype, int], tuple[Callable[[], Tensor], int]]


def _prepare_product(device: torch.device, dtype: torch.dtype, size: int) -> tuple[Callable[[], Tensor], int]:
    factor = torch.full((size, size), 1.0 / size, device=device, dtype=dtype)
    return lambda: torch.mm(factor, factor), 2 * size**3


def _prepare_packed_product(device: torch.device, dtype: torch.dtype, size: int) -> tuple[Callable[[], Tensor], int]:
    factor = torch.full((size, size), 1.0 / size, device=device, dtype=dtype)
    packed = torch.ops.mkldnn._reorder_linear_weight(factor, size)
    return lambda: torch.ops.mkldnn._linear_pointwise(factor, packed, None, "none", [], ""), 2 * size**3


def _prepare_convolution(device: torch.device, dtype: torch.dtype, size: int) -> tuple[Callable[[], Tensor], int]:
    """Make a 3×3 convolution of as much work as a product of this size, and an eighth."""
    batch, channels, width = size // 128, size // 4, _IMAGE + _WINDOW - 1
    images = torch.full((batch, channels, width, width), 1.0 / channels, device=device, dtype=dtype)
    weight = torch.full((channels, channels, _WINDOW, _WINDOW), 1.0 / channels, device=device, dtype=dtype)
    images, weight = (each.to(memory_format=torch.channels_last) for each in (images, weight))
    flops = 2 * batch * _IMAGE**2 * _WINDOW**2 * channels**2
    return lambda: torch.conv2d(images, weight), flops


PRODUCT = PeakKernel("aten.mm", _prepare_product)
PACKED_PRODUCT = PeakKernel("mkldnn._linear_pointwise", _prepare_packed_product)
CONVOLUTION = PeakKernel("aten.convolution", _prepare_convolution)


def list_peak_kernels(device_type: str) -> tuple[PeakKernel, ...]:
    """Return the kernels that may reach the peak of such a device here."""
    if device_type == "cpu" and torch.backends.mkldnn.is_available() and is_onednn_enabled():
        return (PRODUCT, PACKED_PRODUCT, CONVOLUTION)
    return (PRODUCT, CONVOLUTION)


def measure_peak(device: torch.device, dtype: torch.dtype, clock: Clock) -> Peak | None:
    """Return the speed of the fastest kernel, fp32 in IEEE arithmetic; None if the device has none of this dtype."""
    measured = (
        Peak(flops, kernel.name)
        for kernel in list_peak_kernels(device.type)
        if (flops := measure_kernel_flops(kernel, device, dtype, clock)) is not None
    )
    return max(measured, key=lambda peak: peak.flops_per_s, default=None)


def measure_kernel_flops(kernel: PeakKernel, device: torch.device, dtype: torch.dtype, clock: Clock) -> float | None:
    """Return the FLOP/s of the fastest of several calls; None if the device has no such kernel of this dtype.

    A peak is what the device can reach, so the fastest counts: interference from outside only ever slows a kernel.
    The size grows until one more doubling would take too long.
    """
    size = _LEAST_SIZE
    best: float | None = None
    while True:
        try:
            call, flops = kernel.prepare(device, dtype, size)
            seconds = _time_fastest(call, device, clock, _KERNEL_REPEATS, _MOST_KERNEL_REPEATS)
        except RuntimeError:
            return best
        best = max(best or 0.0, flops / seconds)
        if size >= _GREATEST_SIZE[device.type] or seconds * 8 > _KERNEL_SECONDS:
            return best
        size *= 2


def get_device_name(device: torch.device) -> str:
    """Return the driver's name of a GPU, or the processor's name and numbers."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else read_cpu_name()


def get_preferred_alignment(device_type: str) -> int:
    """Return the bytes of which the innermost dimension of a matmul or convolution operand should be a multiple."""
    if device_type == "cuda":
        return _TENSOR_CORE_BYTES
    return _VECTOR_BYTES.get(torch.backends.cpu.get_cpu_capability(), _LEAST_VECTOR_BYTES)


def read_last_level_cache(cpu: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Return the bytes of the largest cache of the first CPU; 32 MiB if unknown."""
    units = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
    sizes = []
    for file in cpu.glob("index*/size"):
        with contextlib.suppress(OSError):
            if (found := re.fullmatch(r"(\d+)([KMG]?)", file.read_text().strip())) is not None:
                sizes.append(int(found[1]) * units[found[2]])
    return max(sizes, default=_UNKNOWN_CACHE_BYTES)


def resolve_device(device: torch.device | str) -> torch.device:
    """Return the device with its index. Raises `OptionError` if this machine has none of that name, or if devices of
    that kind are not measured."""
    try:
        resolved = torch.device(device)
    except RuntimeError as error:
        raise OptionError(f"unknown device {str(device)!r}", "use cpu, cuda or cuda:N") from error
    if resolved.type == "cpu":
        return torch.device("cpu")
    if resolved.type != "cuda":
        raise OptionError(f"device {str(device)!r} cannot be measured", "use cpu, cuda or cuda:N")
    if not torch.cuda.is_available():
        raise OptionError(f"device {str(device)!r} is not on this machine", "use cpu, or run where torch sees the GPU")
    count = torch.cuda.device_count()
    index = resolved.index if resolved.index is not None else torch.cuda.current_device()
    if index >= count:
        raise OptionError(f"device {str(device)!r} is not on this machine", f"torch sees cuda:0 to cuda:{count - 1}")
    return torch.device("cuda", index)


def _choose_buffer_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        cache = torch.cuda.get_device_properties(device).L2_cache_size
    else:
        free = _read_free_memory()
        cache = read_last_level_cache()
    return min(max(_LEAST_BUFFER_BYTES, _CACHES_EXCEEDED * cache), free // _MEMORY_SHARE)


def _read_free_memory() -> int:
    with contextlib.suppress(OSError):
        found = re.search(r"^MemAvailable:\s*(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
        if found is not None:
            return int(found[1]) * 1024
    return _MEMORY_SHARE * _LEAST_BUFFER_BYTES


def _time_fastest(
    call: Callable[[], object], device: torch.device, clock: Clock, repeats: int, most_repeats: int = 0
) -> float:
    """Return the least time of `repeats` calls, or of more if these took less than `_REPEATED_SECONDS` together."""

    def read_synchronized() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return clock()

    seconds: list[float] = []
    while len(seconds) < repeats or (len(seconds) < most_repeats and sum(seconds) < _REPEATED_SECONDS):
        start = read_synchronized()
        call()
        seconds.append(read_synchronized() - start)
    return max(min(seconds), 1e-9)


@contextlib.contextmanager
def _use_ieee_arithmetic(device_type: str) -> Iterator[None]:
    """Run fp32 products and convolutions in fp32 arithmetic, even if the program allows TF32 or bf16."""
    backends: Any = torch.backends
    if device_type == "cuda":
        owners = (backends.cuda.matmul, backends.cudnn.conv)
    else:
        owners = (backends.mkldnn.matmul, backends.mkldnn.conv)
    before = [owner.fp32_precision for owner in owners]
    for owner in owners:
        owner.fp32_precision = "ieee"
    try:
        yield
    finally:
        for owner, precision in zip(owners, before, strict=True):
            owner.fp32_precision = precision


_X86 = ("cpu family", "model", "stepping")
_ARM = ("CPU implementer", "CPU variant", "CPU part", "CPU revision")


def read_cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's marketing name and identifying numbers; the machine architecture if both are unknown.

    The numbers (x86: family, model, stepping; ARM: implementer, variant, part, revision) are needed because virtual
    machines hide the generation in the name ("AMD EPYC 25.17.1" is a Genoa), and ARM's processors have no name.
    """
    try:
        text = cpuinfo.read_text(errors="replace")
    except OSError:
        text = ""
    first = dict(re.findall(r"^(\w[^\t:\n]*?)[ \t]*:[ \t]*(.*?)[ \t]*$", text.split("\n\n")[0], re.MULTILINE))
    name = first.get("model name") or platform.processor() or platform.machine() or "cpu"
    numbers = ".".join(first[field] for field in (*_X86, *_ARM) if field in first)
    return f"{name} {numbers}" if numbers else name
