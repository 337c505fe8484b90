"""Check torch: its version, devices, compilers, and what frx-graph can observe and measure with it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator

import torch

from frx_graph.errors import FrxError
from frx_graph.measure.machine.device_calibration import get_device_name
from frx_graph.measure.machine.device_profile_cache import get_device_profile
from frx_graph.measure.machine.device_state import load_nvml
from frx_graph.measure.machine.measurement_environment import get_onednn_version
from frx_graph.measure.machine.processor_distance import FAR, measure_distance, read_least_distance
from frx_graph.measure.operators.copy_recorder import CopyRecorder
from frx_graph.measure.operators.operator_contract import load_contract
from frx_graph.measure.page_faults import count_page_faults
from frx_graph.support.allocator import Allocation, find_process_allocator, read_allocation
from frx_graph.support.check import Check, Status
from frx_graph.support.torch_internals import has_onednn

BACKEND_GROUP = "torch_dynamo_backends"
OLDEST_TORCH = (2, 11)
_BLOCK_BYTES = 40 * 2**20
"""Above the largest `mmap` threshold that glibc chooses by itself, 32 MiB."""
_REUSES = 5


def check_torch_build() -> Iterator[Check]:
    """Run all checks, in the order in which they are printed. Takes a second or two: it records a convolution."""
    for look in _CHECKS:
        yield from look()


def check_torch_and_cuda() -> Iterator[Check]:
    """Run the checks that take no time."""
    yield from _check_version()
    yield from _check_cuda()


def _check_version() -> Iterator[Check]:
    """Check that torch is not older than the oldest supported version."""
    version = str(torch.__version__)
    major, minor = (int(part) for part in version.split(".")[:2])
    old = (major, minor) < OLDEST_TORCH
    oldest = ".".join(map(str, OLDEST_TORCH))
    yield Check("torch", version, Status.ERROR if old else Status.OK, f"install torch {oldest} or newer" if old else "")


def _check_processor() -> Iterator[Check]:
    threads = torch.get_num_threads()
    yield Check("cpu", f"{get_device_name(torch.device('cpu'))}, {os.cpu_count()} processors, {threads} torch threads")
    # Not every supported torch has it.
    able = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    features = {
        "AVX-512": able.get("avx512_f"),
        "AVX-512 bf16": able.get("avx512_bf16"),
        "AVX2": able.get("avx2"),
        "AMX bf16": able.get("amx_bf16"),
        "AMX int8": able.get("amx_int8"),
        "SVE": able.get("sve"),
        "Arm bf16": able.get("arm_bf16", able.get("bf16")),
    }
    present = ", ".join(name for name, there in features.items() if there)
    used = f"torch uses {torch.backends.cpu.get_cpu_capability()}"
    yield Check("cpu capabilities", f"{present} ({used})" if present else used)


def _check_distance() -> Iterator[Check]:
    """Report whether a virtual machine's processors share a cache now, compared with the least distance of a day."""
    distance, threads = measure_distance(), torch.get_num_threads()
    if distance is None:
        return
    least = read_least_distance(platform.node(), get_device_name(torch.device("cpu")), threads)
    measured = f"its {threads} threads meet in {distance:.2g} times one thread's share of a short loop"
    if least is None:
        yield Check("virtual machine", f"{measured}; no trial has measured it within a day")
    elif distance < FAR * least:
        yield Check("virtual machine", f"{measured}, and in trials {least:.2g}: its processors are as near as then")
    else:
        hint = "a hypervisor has moved its processors: trials wait until they are near, and other times vary"
        yield Check(
            "virtual machine", f"{measured}, and in trials {least:.2g}: farther than then", Status.WARNING, hint
        )


def _check_allocation() -> Iterator[Check]:
    """Report the allocator of this process, and how much of a large block is faulted in again when it is reused."""
    match read_allocation():
        case Allocation.DEFAULT:
            description = "glibc, gives freed memory back to the kernel"
        case Allocation.POOLED:
            description = "glibc, keeps freed memory"
        case Allocation.CHOSEN:
            description = f"chosen by the environment: {find_process_allocator()}"
        case Allocation.UNKNOWN:
            description = "of another C library than glibc"
    faults = count_page_faults(_reuse_block, calls=_REUSES)
    if faults is None:
        counted = "page faults are not counted here"
    else:
        counted = f"{faults.per_call:,} page faults to reuse a block of {_BLOCK_BYTES >> 20} MiB"
    yield Check("allocator", f"{description}; {counted}")


def _reuse_block() -> None:
    torch.empty(_BLOCK_BYTES, dtype=torch.uint8).fill_(1)


def _check_onednn() -> Iterator[Check]:
    version = get_onednn_version()
    if version is None or not has_onednn():
        hint = "conversions inside CPU convolutions cannot be seen; install a build of torch with oneDNN"
        yield Check("oneDNN", "not in this build of torch", Status.WARNING, hint)
    elif not torch.backends.mkldnn.enabled:
        hint = "torch.backends.mkldnn.enabled is False: set it to True"
        yield Check("oneDNN", f"{version}, switched off", Status.WARNING, hint)
    else:
        yield Check("oneDNN", version)


def _check_recording() -> Iterator[Check]:
    """Record a convolution that is large enough for oneDNN."""
    try:
        with torch.no_grad(), CopyRecorder() as recorder, recorder.open_region("convolution"):
            torch.conv2d(torch.ones(1, 32, 32, 32), torch.ones(32, 32, 3, 3), padding=1)
            torch.ones(8, 8).t().contiguous()
    except (FrxError, RuntimeError, OSError) as error:
        yield Check("copy recorder", str(error), Status.ERROR, "without it, copies cannot be observed or measured")
        return
    mechanisms = sorted({str(copy.mechanism) for copy in recorder.get_copies("convolution")})
    if mechanisms:
        yield Check("copy recorder", f"works, sees {' and '.join(mechanisms)}")
    else:
        hint = "the profiler of this torch build records no operators"
        yield Check("copy recorder", "sees nothing", Status.ERROR, hint)


def _check_compilers() -> Iterator[Check]:
    # Inductor takes only the compiler that `CXX` names, or a default: `cpp.cxx` in torch/_inductor/config.py.
    words = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++").split()
    if words and (compiler := shutil.which(words[0])) is not None:
        yield Check("C++ compiler", compiler)
    else:
        hint = "Inductor needs one to compile for the CPU: install g++ (clang++ on macOS), or name one in CXX"
        yield Check("C++ compiler", "none found", Status.WARNING, hint)
    triton = _find_package_version("triton")
    if triton is None and torch.cuda.is_available():
        status, hint = Status.WARNING, "Inductor needs triton to compile for the GPU: pip install triton"
    else:
        status, hint = Status.OK, ""
    absent = triton is None and status is Status.OK
    yield Check("triton", triton or "not installed (only needed for GPUs)", status, hint, absent)


def _check_cuda() -> Iterator[Check]:
    """Check which GPUs torch can use. No GPU is not an error: everything also works on the CPU."""
    names = list_torch_gpus()
    if names:
        yield Check("CUDA available", ", ".join(f"{name} x{count}" for name, count in Counter(names).items()))
    elif torch.version.cuda is None and torch.version.hip is None:
        yield Check("CUDA available", "no: this torch is a CPU build, so frx analyses the CPU only", absent=True)
    else:
        built = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}"
        yield Check("CUDA available", f"no: torch is built for {built}, but sees no device or driver", absent=True)


def _check_devices() -> Iterator[Check]:
    for index, name in enumerate(list_torch_gpus()):
        major, minor = torch.cuda.get_device_capability(index)
        yield Check(f"cuda:{index}", f"{name}, CUDA {torch.version.cuda}, sm_{major}{minor}")


def _check_calibration() -> Iterator[Check]:
    for device in list_usable_devices():
        try:
            profile = get_device_profile(device, measure=False)
        except FrxError:
            yield Check(f"bandwidth of {device}", "not measured yet; the next frx advise measures it")
            continue
        peaks = ", ".join(
            f"{str(dtype).removeprefix('torch.')} {peak / 1e9:.0f} GFLOP/s by {profile.peak_kernels[dtype]}"
            for dtype, peak in profile.peak_flops.items()
        )
        load = "; measured under load, the device may reach more" if profile.under_load else ""
        value = f"{profile.bandwidth_bytes_per_s / 1e9:.1f} GB/s; {peaks}{load} (frx doctor --measure measures again)"
        yield Check(f"bandwidth of {device}", value)


def _check_contracts() -> Iterator[Check]:
    for device in list_usable_devices():
        name = f"layout contract for {device}"
        remedy = f"frx probe --device {device} measures it in a minute or two"
        try:
            contract = load_contract(device, str(torch.__version__))
        except FrxError as error:
            yield Check(name, str(error), Status.ERROR, remedy)
            continue
        here = torch.backends.cpu.get_cpu_capability()
        if contract is None:
            yield Check(name, "none", Status.WARNING, remedy)
        elif not contract.exact:
            value = f"{contract.name} is the nearest, but this is torch {torch.__version__}"
            yield Check(name, value, Status.WARNING, remedy)
        elif contract.device == "cpu" and (measured_on := contract.measured_on.get("cpu_capability")) != here:
            value = f"{contract.name} was measured on a processor with {measured_on}, this one has {here}"
            yield Check(name, value, Status.WARNING, remedy)
        else:
            yield Check(name, f"{contract.name} (measured with torch {contract.torch_version})")


def _check_backend() -> Iterator[Check]:
    name = "torch.compile backend"
    found = [entry for entry in importlib.metadata.entry_points(group=BACKEND_GROUP) if entry.name == "frx"]
    if not found:
        hint = "the package is not installed properly: pip install --force-reinstall frx-graph"
        yield Check(name, "frx is not registered", Status.ERROR, hint)
        return
    try:
        found[0].load()
    except (ImportError, AttributeError) as error:
        yield Check(name, f"cannot be loaded: {error}", Status.ERROR, "reinstall frx-graph and torch")
    else:
        yield Check(name, f"frx ({found[0].value})")


def list_usable_devices() -> tuple[str, ...]:
    """Return the device types that this torch can use here."""
    return ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


def list_torch_gpus() -> list[str]:
    """Return the names of the GPUs that torch can use."""
    if not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def _find_package_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "installed" if importlib.util.find_spec(package) is not None else None


def _check_sampling() -> Iterator[Check]:
    """Warn if GPUs that torch uses cannot be sampled."""
    if torch.version.cuda is not None and torch.cuda.is_available() and load_nvml() is None:
        hint = "GPUs cannot be sampled: the driver's libnvidia-ml.so.1 is not found"
        yield Check("sampling of GPUs", "not possible", Status.WARNING, hint)


_CHECKS: tuple[Callable[[], Iterator[Check]], ...] = (
    _check_version,
    _check_processor,
    _check_distance,
    _check_allocation,
    _check_onednn,
    _check_recording,
    _check_compilers,
    _check_cuda,
    _check_devices,
    _check_sampling,
    _check_calibration,
    _check_contracts,
    _check_backend,
)
