"""The parts of `gpu_campaign.py` that no other program has; each prints JSON, unless it is to be profiled.

    python benchmarks/campaign_parts.py PART --device cuda|cpu [--path PATH]

`machine`: device, versions, and what the machine has. `contract`: where the contract in PATH, just measured, differs
from the documented one for GPUs, or from the shipped one. `calibration`: bandwidth and peaks. `absent_gpu`: advice for
this GPU as if it were not here, beside profiler traces of the same networks, which are kept in the folder PATH.
`ranks`: two ranks train under backend "frx" and agree. `convolution`, `attention`, `generated`: programs to profile.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from frx_graph.advisor.advisor import load_documented
from frx_graph.measure.machine.device_calibration import get_device_name
from frx_graph.measure.operators.operator_contract import (
    ContractRow,
    OperatorContract,
    load_contract,
    read_contract,
)
from frx_graph.rules.gpu_profile import find_architecture_by_capability

ABSENT = (("resnet18", "float32"), ("resnet18", "bfloat16"), ("vgg16", "bfloat16"), ("vit_base", "bfloat16"))
CALLS = 3
"""Calls of a network in a trace."""


def describe_machine(device: str, _: Path | None) -> dict[str, Any]:
    """Return the device, the versions, and what the machine has."""
    from frx_graph.evidence.ncu.profiler import find_ncu

    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("campaign: this torch sees no CUDA device; see frx doctor")
    count = torch.cuda.device_count() if device == "cuda" else 0
    has = {
        "GPU": bool(count),
        "two GPUs": count > 1 or device == "cpu",
        "ncu": bool(count) and find_ncu() is not None,
        "test packages": all(map(_is_installed, ("pytest", "hypothesis", "expecttest", "jsonschema"))),
        "transformers": _is_installed("transformers"),
        "monai": _is_installed("monai"),
    }
    return {
        "device": get_device_name(torch.device(device)),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "python": platform.python_version(),
        "has": has,
    }


def _is_installed(name: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(name) is not None


def compare_contracts(device: str, path: Path | None) -> dict[str, Any]:
    """Return the measured rows for which documents, or the shipped contract, say something else."""
    assert path is not None
    measured = read_contract(path)
    if torch.version.hip:
        raise SystemExit(f"campaign: nothing is documented of AMD's GPUs to compare {path} with")
    if device == "cuda":
        gpu = find_architecture_by_capability("{}.{}".format(*torch.cuda.get_device_capability()))
        reference: OperatorContract | None = None if gpu is None else load_documented(gpu)
    else:
        reference = load_contract(device, torch.__version__, own=Path(os.devnull))
    if reference is None:
        raise SystemExit(f"campaign: nothing is listed for {get_device_name(torch.device(device))}")
    agree, unknown, different = 0, 0, []
    for row in measured.rows:
        expected = reference.get_entry(row.target, row.operand, row.pattern, row.dtype, rank=row.rank, case=row.case)
        if expected is None or row.entry is None:
            unknown += 1
        elif expected.agrees(row.entry):
            agree += 1
        else:
            different.append(_describe_row(row) | {"expected": asdict(expected), "measured": asdict(row.entry)})
    return {"expected": reference.name, "agree": agree, "unknown": unknown, "different": different}


def _describe_row(row: ContractRow) -> dict[str, Any]:
    return {
        "call": f"{row.target}, {row.case}",
        "operand": "result" if row.operand is None else row.operand,
        "strides": str(row.pattern),
        "dtype": str(row.dtype),
    }


def calibrate(device: str, _: Path | None) -> dict[str, Any]:
    """Return bandwidth and peaks of the device."""
    from frx_graph.measure.machine.device_profile_cache import get_device_profile

    profile = get_device_profile(device)
    peaks = {str(dtype): flops for dtype, flops in profile.peak_flops.items()}
    return {"name": profile.name, "bandwidth_bytes_per_s": profile.bandwidth_bytes_per_s, "peak_flops": peaks}


def compare_absent_gpu(device: str, path: Path | None) -> dict[str, Any]:
    """Return predicted conversions and copies beside those of profiler traces, which are written to the folder. What is
    predicted is captured as for a GPU that is not here."""
    from advice_for_gpu import Trace, compare

    assert path is not None
    path.mkdir(exist_ok=True)
    name = torch.cuda.get_device_name().removeprefix("NVIDIA ")
    rows: list[dict[str, Any]] = []
    for network, dtype in ABSENT:
        file = path / f"{network}-{dtype}.json"
        try:
            record_network(network, getattr(torch, dtype), device, file)
            rows.append(asdict(compare(Trace(file.name, "this machine", network, name, dtype, CALLS), file)))
        # The other networks say something by themselves.
        except Exception as error:  # noqa: BLE001
            rows.append({"network": network, "dtype": dtype, "error": f"{type(error).__name__}: {error}"})
    if all("error" in row for row in rows):
        raise SystemExit(f"campaign: {rows[0]['error']}")
    return {"gpu": name, "rows": rows}


def record_network(network: str, dtype: torch.dtype, device: str, file: Path) -> None:
    """Write a profiler trace of some calls of a network."""
    from advice_for_gpu import NETWORKS

    from frx_graph.advisor.target import load_target

    workload = load_target(f"{NETWORKS}:{network}")
    model = workload.model.to(device, dtype)  # type: ignore[attr-defined]
    args = tuple(one.to(device, dtype) if one.is_floating_point() else one.to(device) for one in workload.args)
    record(lambda: model(*args), file)


@torch.no_grad()
def record(call: Callable[[], object], file: Path) -> None:
    """Write a profiler trace of some calls."""
    call()
    torch.cuda.synchronize()
    with torch.profiler.profile(record_shapes=True) as profiler:
        for _ in range(CALLS):
            call()
        torch.cuda.synchronize()
    profiler.export_chrome_trace(str(file))


def train_ranks(device: str, _: Path | None) -> dict[str, Any]:
    """Train in two ranks under backend "frx", and return whether their weights agree; on the first rank only."""
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    place = torch.device("cuda", rank) if device == "cuda" else torch.device("cpu")
    if device == "cuda":
        torch.cuda.set_device(place)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 64, 4)).to(place)
    program = torch.compile(nn.parallel.DistributedDataParallel(model), backend="frx")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for _step in range(3):
        optimizer.zero_grad()
        program(torch.randn(4, 8, 8, 8, device=place)).square().mean().backward()
        optimizer.step()
    mine = torch.cat([weight.detach().flatten() for weight in model.parameters()])
    first = mine.clone()
    dist.broadcast(first, 0)
    same = torch.tensor([float(torch.equal(mine, first))], device=place)
    dist.all_reduce(same)
    dist.destroy_process_group()
    if rank:
        raise SystemExit(0 if same.item() == 2 else 1)
    return {"ranks": 2, "backend": "nccl" if device == "cuda" else "gloo", "weights_agree": same.item() == 2}


def run_convolution(device: str, _: Path | None) -> None:
    """Run a convolution of plain images in half precision: cuDNN converts them."""
    layer = nn.Conv2d(64, 64, 3, padding=1).to(device, torch.bfloat16)
    _repeat(lambda: layer(torch.randn(32, 64, 56, 56, device=device, dtype=torch.bfloat16)))


def run_attention(device: str, _: Path | None) -> None:
    """Run a fused attention."""
    q = torch.randn(4, 16, 1024, 64, device=device, dtype=torch.bfloat16)
    _repeat(lambda: nn.functional.scaled_dot_product_attention(q, q, q))


def run_generated(device: str, _: Path | None) -> None:
    """Run a loop that Inductor generates: Triton on a GPU."""
    compiled = torch.compile(lambda x: (x.sin() + x.t()).relu())
    x: Tensor = torch.randn(2048, 2048, device=device)
    _repeat(lambda: compiled(x))


@torch.no_grad()
def _repeat(call: Callable[[], object]) -> None:
    for _ in range(5):
        call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()


PARTS: dict[str, Callable[[str, Path | None], dict[str, Any] | None]] = {
    "machine": describe_machine,
    "contract": compare_contracts,
    "calibration": calibrate,
    "absent_gpu": compare_absent_gpu,
    "ranks": train_ranks,
    "convolution": run_convolution,
    "attention": run_attention,
    "generated": run_generated,
}


def main() -> int:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--path", type=Path)
    asked = parser.parse_args()
    made = PARTS[asked.part](asked.device, asked.path)
    if made is not None:
        print(json.dumps(made, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
