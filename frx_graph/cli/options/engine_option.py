"""`--engine`, `--address`, `--working-dir`: select where trials run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from frx_graph.engines.engine import Engine, EngineName, Holding, LocalEngine
from frx_graph.errors import OptionError

EngineOption = Annotated[
    EngineName, typer.Option("--engine", help="Where trials run: on this machine or a Ray cluster.")
]
AddressOption = Annotated[
    str | None,
    typer.Option(
        help="Address of the Ray cluster: auto, host:port, ray://host:port. Default: RAY_ADDRESS, or this machine."
    ),
]
WorkingDirOption = Annotated[
    Path | None,
    typer.Option(
        help="Folder that Ray copies to all nodes as working directory. Default: this folder, which every node needs."
    ),
]


def check_engine(engine: EngineName, address: str | None, working_dir: Path | None) -> None:
    """Raise `OptionError` for options that only a cluster takes, and for a missing folder."""
    for name, given in (("--address", address), ("--working-dir", working_dir)):
        if given is not None and engine is EngineName.LOCAL:
            raise OptionError(f"{name} is for a Ray cluster", "add --engine ray, or leave it out")
    if working_dir is not None and not working_dir.is_dir():
        raise OptionError(f"--working-dir {working_dir} is not a folder", "name the folder of the program")


@contextlib.contextmanager
def open_engine(name: EngineName, address: str | None, working_dir: Path | None, holding: Holding) -> Iterator[Engine]:
    """Yield the engine, connected while the block runs."""
    with open_cluster(name, address, working_dir, holding) as cluster:
        yield LocalEngine() if cluster is None else cluster(None)


@contextlib.contextmanager
def open_cluster(
    name: EngineName, address: str | None, working_dir: Path | None, holding: Holding
) -> Iterator[Callable[[str | None], Engine] | None]:
    """Yield a function that returns the engine of the nodes with an environment (None: of all nodes), connected while
    the block runs. Yield None for local trials."""
    if name is EngineName.LOCAL:
        yield None
        return
    # Imported late: it hashes frx's code, and imports Ray.
    from frx_graph.engines.ray_cluster import connect_ray
    from frx_graph.engines.ray_engine import RayEngine

    with connect_ray(address, working_dir) as cluster:
        folder = None if cluster.working_dir else Path.cwd()
        yield lambda environment: RayEngine(cluster, holding, folder=folder, environment=environment)
