"""The option `--gpu-model`: by which GPU kernels are judged."""

from __future__ import annotations

from typing import Annotated

import typer

GpuModel = Annotated[
    str | None,
    typer.Option("--gpu-model", help="Judge kernels by this GPU, H100 or sm_90, in place of the file's."),
]
