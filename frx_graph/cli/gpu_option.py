"""The option `--gpu-model`: by which GPU kernels are judged."""

from __future__ import annotations

from typing import Annotated

import typer

from frx_graph.errors import OptionError
from frx_graph.rules.gpu_profile import GpuProfile, gpu_named

GpuModel = Annotated[
    str | None,
    typer.Option("--gpu-model", help="Judge kernels by this GPU, H100 or sm_90, in place of the file's."),
]


def cuda_gpu(name: str | None) -> GpuProfile | None:
    """The GPU of that name. Raises `OptionError` for one that is not known, or on which CUDA kernels do not run."""
    if name is None:
        return None
    found = gpu_named(name)
    if found.architecture.limits is None:
        raise OptionError(f"--gpu-model {found.name} is no GPU that CUDA kernels run on", "name one of NVIDIA's")
    return found
