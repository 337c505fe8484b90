"""A rank for `test_elastic_restarts.py`, under `torchrun`:

    torchrun ... elastic_rank.py FOLDER LAST

agrees on a plan that is named after its life, and leaves what it saw as FOLDER/LIFE.RANK.json. In all lives but LAST a
rank ends, so that the launcher starts all anew: the second one while it validates. If there is FOLDER/machines, it does
not end by itself, but waits to be killed with its launcher. Which life it is says the number of files `*.over`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed as dist

from frx_graph.distributed.consensus import agree

LONG = 60.0


def main(folder: Path, last: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=LONG))
    rank, world = dist.get_rank(), dist.get_world_size()
    life = len(list(folder.glob("*.over")))
    if life > 0 and rank == 0:
        # The others find what the life before has left.
        time.sleep(2.0)

    def valid(plan: bytes) -> str | None:
        if 0 < life < last and rank == 1:
            (folder / f"{life}.over").touch()
            os._exit(1)
        return None if plan == f"plan of life {life}".encode() else f"a plan of another life: {plan.decode()}"

    start = time.monotonic()
    said = agree(f"plan of life {life}".encode, valid, about="graph", seconds=LONG)
    seen = {**asdict(said), "plan": said.plan and said.plan.decode(), "world": world}
    (folder / f"{life}.{rank}.json").write_text(json.dumps({**seen, "seconds": time.monotonic() - start}))
    dist.barrier()
    if life < last:
        if rank == 1 and not (folder / "machines").exists():
            (folder / f"{life}.over").touch()
            os._exit(1)
        if rank == 1:
            (folder / "victim").write_text(str(os.getpid()))
            time.sleep(LONG)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
