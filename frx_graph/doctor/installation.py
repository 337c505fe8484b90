"""Check this installation: versions, devices, compilers, caches, and the collection of evidence."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from frx_graph.doctor import machine
from frx_graph.errors import FrxError
from frx_graph.measure.machine.device_calibration import get_device_name
from frx_graph.measure.machine.device_profile_cache import get_device_profile
from frx_graph.measure.machine.measurement_environment import get_onednn_version
from frx_graph.measure.operators.copy_recorder import CopyRecorder
from frx_graph.measure.operators.operator_contract import load_contract
from frx_graph.support.cache_directory import CACHE_VARIABLE, get_cache_directory
from frx_graph.support.check import Check, Status
from frx_graph.support.torch_internals import has_onednn
from frx_graph.version import __version__

BACKEND_GROUP = "torch_dynamo_backends"


def check_installation() -> tuple[Check, ...]:
    """Run all checks, in the order in which they are printed. Takes a second or two: it records a convolution."""
    return (Check("frx-graph", __version__), *(check for look in _CHECKS for check in look()))


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
    yield Check("triton", triton or "not installed (only needed for GPUs)", status, hint)


def _check_devices() -> Iterator[Check]:
    for index, name in enumerate(machine.list_gpu_names()):
        major, minor = torch.cuda.get_device_capability(index)
        yield Check(f"cuda:{index}", f"{name}, CUDA {torch.version.cuda}, sm_{major}{minor}")


def _check_cache() -> Iterator[Check]:
    folder = get_cache_directory()
    files = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    size = sum(path.stat().st_size for path in files)
    description = f"{folder} ({len(files)} files, {size / 1024:.0f} KiB)"
    if _is_writable(folder):
        yield Check("cache", description)
    else:
        hint = f"every run must measure again; name a writable folder in {CACHE_VARIABLE}"
        yield Check("cache", f"{description}, cannot be written", Status.WARNING, hint)


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


_CHECKS: tuple[Callable[[], Iterator[Check]], ...] = (
    machine.check_python,
    machine.check_torch,
    machine.check_parts,
    _check_processor,
    machine.check_allocation,
    _check_onednn,
    _check_recording,
    _check_compilers,
    machine.check_cuda,
    _check_devices,
    machine.check_gpu_model,
    machine.check_driver,
    machine.check_tools,
    _check_cache,
    _check_calibration,
    _check_contracts,
    _check_backend,
)


def list_usable_devices() -> tuple[str, ...]:
    """Return the device types that this torch can use here."""
    return ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


def _find_package_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "installed" if importlib.util.find_spec(package) is not None else None


def _is_writable(folder: Path) -> bool:
    """Return True if files, or `folder` itself, can be created. Writes nothing."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
