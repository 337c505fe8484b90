"""Measure a device's bandwidth and peak once per device, torch version and thread count, and cache the result.

Bandwidth is the speed of torch's copy of a buffer that no cache can hold. It counts bytes read plus bytes written, like
all traffic in this package. Peak arithmetic is the speed of torch's square matrix product, for each dtype.
"""

from __future__ import annotations

import contextlib
import platform
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from frx_graph.errors import EvidenceError, OptionError
from frx_graph.measure.machine.device_profile import DeviceProfile, find_implausibility
from frx_graph.measure.machine.disturbance import watch_disturbance
from frx_graph.support.cache_directory import CACHE_VARIABLE, get_cache_directory, write_cache_entry
from frx_graph.support.torch_internals import disable_current_modes

Clock = Callable[[], float]

CALIBRATED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)

_COPY_REPEATS = 7
_CACHES_EXCEEDED = 4
"""Buffers are this many times the last-level cache: at most a quarter of a buffer is still cached from last time."""
_LEAST_BUFFER_BYTES = 64 * 2**20
_MEMORY_SHARE = 8
"""A buffer takes at most one in this many bytes of the free memory."""
_UNKNOWN_CACHE_BYTES = 32 * 2**20

_MATMUL_REPEATS = 3
_LEAST_MATMUL = 256
_GREATEST_MATMUL = {"cpu": 2048, "cuda": 8192}
_MATMUL_SECONDS = 0.3
"""No product that is expected to take longer than this is started: emulated dtypes reach 0.2 GFLOP/s on a CPU."""

_VECTOR_BYTES = {"AVX512": 64, "AVX2": 32, "SVE256": 32}
"""`torch.backends.cpu.get_cpu_capability()` → bytes of a vector register (`ATen/cpu/vec/vec_base.h`, VECTOR_WIDTH)."""
_LEAST_VECTOR_BYTES = 16
"""SSE, NEON, SVE128, VSX and Z vectors are all 128 bits wide."""
_TENSOR_CORE_BYTES = 16
"""cuBLAS and cuDNN run tensor cores at full rate when dimensions are multiples of 16 bytes (NVIDIA, "Matrix
Multiplication Background User's Guide", tensor core requirements)."""

_AGAIN = "measure again when nothing else runs: frx doctor --measure"


def get_device_profile(device: torch.device | str, *, cache: Path | None = None, measure: bool = True) -> DeviceProfile:
    """The profile of `device`, from the cache directory (`cache`, else `get_cache_directory()`) or measured now.

    An unreadable or implausible cache entry is measured again; an unwritable cache is ignored. A measurement that other
    programs disturbed is used, but not stored. Raises `OptionError` as `calibrate` does, and `EvidenceError` for an
    implausible measurement, or if there is no entry and `measure` is False.
    """
    resolved = _resolve(device)
    path = _get_entry_path(resolved, cache)
    if (stored := _read_entry(path)) is not None:
        return stored
    if not measure:
        raise EvidenceError(f"{get_device_name(resolved)} was not measured yet", "let it be measured once")
    profile, disturbed = _measure_checked(resolved)
    if not disturbed:
        write_cache_entry(path, _dump_entry(profile))
    return profile


def measure_again(device: torch.device | str, *, cache: Path | None = None) -> DeviceProfile:
    """Measure `device` now, and replace its entry in the cache.

    Raises `OptionError` as `calibrate` does. Raises `EvidenceError` if other programs used the processors, the
    measurement is implausible, or the cache cannot be written; the cache is then unchanged.
    """
    resolved = _resolve(device)
    path = _get_entry_path(resolved, cache)
    profile, disturbed = _measure_checked(resolved)
    if disturbed:
        raise EvidenceError("other programs held the processors during the measurement", _AGAIN)
    if not write_cache_entry(path, _dump_entry(profile)):
        raise EvidenceError(f"the measurement cannot be written to {path}", f"set {CACHE_VARIABLE} to another folder")
    return profile


def _measure_checked(device: torch.device) -> tuple[DeviceProfile, bool]:
    """The profile, and whether other programs disturbed it."""
    with watch_disturbance() as disturbed:
        profile = calibrate(device)
    if (reason := find_implausibility(profile)) is not None:
        raise EvidenceError(f"the measurement of {profile.name} cannot be true: {reason}", _AGAIN)
    return profile, device.type == "cpu" and disturbed()


def calibrate(device: torch.device | str, *, clock: Clock = time.perf_counter) -> DeviceProfile:
    """Measure `device` now, in about two seconds on two CPU cores, using torch's current number of threads; also where
    the caller's tensors are fake.

    Raises `OptionError` for a device that this machine or this function does not have.
    """
    resolved = _resolve(device)
    with disable_current_modes(), torch.inference_mode(), _use_ieee_matmuls(resolved.type):
        bandwidth = measure_bandwidth(resolved, clock)
        peaks = {dtype: measure_peak_flops(resolved, dtype, clock) for dtype in CALIBRATED_DTYPES}
    return DeviceProfile(
        device=resolved.type,
        name=get_device_name(resolved),
        bandwidth_bytes_per_s=bandwidth,
        peak_flops={dtype: peak for dtype, peak in peaks.items() if peak is not None},
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


def measure_peak_flops(device: torch.device, dtype: torch.dtype, clock: Clock) -> float | None:
    """FLOP/s of the fastest of several square matrix products, fp32 in IEEE arithmetic; None where the device has no
    product of this dtype.

    A peak is what the device can reach, so the fastest counts: interference from outside only ever slows a product.
    The product grows until one more doubling would take too long.
    """
    size = _LEAST_MATMUL
    best = 0.0
    while True:
        try:
            factor = torch.full((size, size), 1.0 / size, device=device, dtype=dtype)
            seconds = _time_fastest(lambda: torch.mm(factor, factor), device, clock, _MATMUL_REPEATS)  # noqa: B023
        except RuntimeError:
            return None
        best = max(best, 2 * size**3 / seconds)
        if size >= _GREATEST_MATMUL[device.type] or seconds * 8 > _MATMUL_SECONDS:
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


def _resolve(device: torch.device | str) -> torch.device:
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


def _time_fastest(call: Callable[[], object], device: torch.device, clock: Clock, repeats: int) -> float:
    def read_synchronized() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return clock()

    seconds = []
    for _ in range(repeats):
        start = read_synchronized()
        call()
        seconds.append(read_synchronized() - start)
    return max(min(seconds), 1e-9)


@contextlib.contextmanager
def _use_ieee_matmuls(device_type: str) -> Iterator[None]:
    """Run fp32 products in fp32 arithmetic, even if the program allows TF32 or bf16."""
    backend: Any = torch.backends.cuda if device_type == "cuda" else torch.backends.mkldnn
    matmul = backend.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "ieee"
    try:
        yield
    finally:
        matmul.fp32_precision = before


_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in CALIBRATED_DTYPES}


class _StoredProfile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    version: Literal["frx_device_profile_v1"] = "frx_device_profile_v1"
    device: Literal["cpu", "cuda"]
    name: str
    bandwidth_bytes_per_s: _Positive
    peak_flops: Mapping[Literal["float32", "bfloat16", "float16"], _Positive]
    preferred_alignment_bytes: Annotated[int, Field(gt=0)]


def _dump_entry(profile: DeviceProfile) -> str:
    peaks = {str(dtype).removeprefix("torch."): peak for dtype, peak in profile.peak_flops.items()}
    return _StoredProfile.model_validate({**vars(profile), "peak_flops": peaks}).model_dump_json(indent=1)


def _read_entry(path: Path) -> DeviceProfile | None:
    """Return the entry; None if it is missing or implausible."""
    try:
        stored = _StoredProfile.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
    peaks = {_DTYPES[name]: peak for name, peak in stored.peak_flops.items()}
    profile = DeviceProfile(
        stored.device, stored.name, stored.bandwidth_bytes_per_s, peaks, stored.preferred_alignment_bytes
    )
    return profile if find_implausibility(profile) is None else None


def _get_entry_path(device: torch.device, cache: Path | None) -> Path:
    parts = [device.type, get_device_name(device), f"torch-{torch.__version__}"]
    if device.type == "cpu":
        parts.append(f"{torch.get_num_threads()}-threads")
    name = re.sub(r"[^A-Za-z0-9.+]+", "-", "_".join(parts))
    return (cache or get_cache_directory()) / f"device-{name}.json"


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
