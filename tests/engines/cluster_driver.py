"""A program that runs jobs with arms on a cluster, until it is interrupted: `cluster_driver.py ADDRESS FOLDER`."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from cluster_jobs import WithArm

from frx_graph.cli.interrupt import EXIT_INTERRUPTED
from frx_graph.engines.engine import Holding
from frx_graph.engines.ray_cluster import connect_ray
from frx_graph.engines.ray_engine import RayEngine
from frx_graph.support.supervisor.process import unwind_on_termination

if __name__ == "__main__":
    address, folder = sys.argv[1:]
    jobs = [WithArm(folder, number, str(Path(folder) / "gate")) for number in range(2)]
    with (
        unwind_on_termination(),
        connect_ray(address) as cluster,
        contextlib.closing(RayEngine(cluster, Holding.CORES).run(jobs, lambda _: None)) as finished,
    ):
        try:
            for one in finished:
                print(one.result, flush=True)
        except KeyboardInterrupt:
            sys.exit(EXIT_INTERRUPTED)
