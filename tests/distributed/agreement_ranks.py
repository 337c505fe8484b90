"""Ranks for `test_agreement.py`, and for `promoted_ranks.py`, which has other scenarios: forks them, has each run one,
and leaves what it saw as JSON, a file a rank.

    python agreement_ranks.py SECONDS

reads `[scenario, world, store, folder]`, a line of JSON each, and answers "done". Ranks are forked from this process,
which has torch loaded, so that a scenario takes no longer than its ranks.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch._C._distributed_c10d import Store
from torch.distributed.fsdp import fully_shard

import frx_graph
from frx_graph.distributed.consensus import agree
from frx_graph.distributed.voting import Voter

LONG = 60.0
"""For what comes in time however busy the machine is."""
SHORT = float(sys.argv[1])
"""For what does not come at all."""
Seen = dict[str, Any]


def fine(_plan: bytes) -> None:
    return None


def asked(
    valid: Callable[[bytes], str | None] = fine, *, about: str = "graph", seconds: float = LONG, **how: Any
) -> Seen:
    """What `agree` says, and how many seconds it took; rank 0's plan is b"plan"."""
    start = time.monotonic()
    found = agree(how.pop("proposal", lambda: b"plan"), valid, about=about, seconds=seconds, **how)
    return {**asdict(found), "plan": found.plan and found.plan.decode(), "took": time.monotonic() - start}


def summed(group: dist.ProcessGroup | None = None) -> float:
    """The program's own collective: 1 for each rank."""
    one = torch.ones(1)
    dist.all_reduce(one, group=group)
    return one.item()


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("not reached")


def in_turn(rank: int, world: int) -> Seen:
    """All that no rank dies of, one after the other in the same processes, a collective of the program's after each."""
    last = world - 1

    def dissent(_plan: bytes) -> str | None:
        return "another graph" if rank == last else None

    def fail(_plan: bytes) -> None:
        if rank == last:
            raise ValueError("cannot be read\nat all")

    def dawdle(_plan: bytes) -> None:
        if rank == last:
            time.sleep(SHORT + 1)

    def leave(_plan: bytes) -> None:
        if rank == last:
            sys.exit(3)

    def left() -> Seen | str:
        try:
            return asked(leave)
        except SystemExit as error:
            return f"SystemExit: {error.code}"

    def unable() -> bytes:
        raise RuntimeError("no ledger")

    seen: Seen = {}
    for name, ask in {
        "agree": lambda: asked(),
        "again": lambda: asked(proposal=lambda: b"another plan"),
        "dissent": lambda: asked(dissent),
        "fail": lambda: asked(fail),
        "slow": lambda: asked(dawdle, seconds=SHORT),
        "nothing": lambda: asked(proposal=lambda: None),
        "unable": lambda: asked(proposal=unable),
        "own": lambda: asked(lambda _: "changed my mind" if rank == 0 else None),
        "large": lambda: asked(proposal=lambda: bytes(5 * 2**20)),
        "left": left,
        "orders": lambda: [asked(about=about, seconds=SHORT) for about in ("ab" if rank else "ba")],
        "at last": lambda: asked(proposal=lambda: bytes(range(256)).decode("latin-1").encode()),
    }.items():
        seen[name] = {"said": ask(), "summed": summed()}
    return seen


def set_up_again(rank: int, world: int) -> Seen:
    """The process group is destroyed and made anew, by ranks that have asked as often as they like until then."""
    first = asked()
    dist.destroy_process_group()
    if rank == 0:
        asked()
    dist.init_process_group("gloo", store=dist.FileStore("again", world), rank=rank, world_size=world)
    return {"first": first, "second": asked(), "summed": summed()}


def killed(rank: int, world: int, victim: int, ask: Callable[[], Seen]) -> Seen:
    """`ask`, in the course of which `victim` dies, then a collective of those that are left."""
    others = dist.new_group([other for other in range(world) if other != victim])
    summed()
    seen = ask()
    return {"said": seen, "summed": summed(others)}


def killed_before(rank: int, world: int) -> Seen:
    return killed(rank, world, world - 1, lambda: die() if rank == world - 1 else asked(seconds=SHORT))


def killed_validating(rank: int, world: int) -> Seen:
    return killed(rank, world, world - 1, lambda: asked(lambda _: die() if rank == world - 1 else None, seconds=SHORT))


def killed_after_its_vote(rank: int, world: int) -> Seen:
    """It has found the plan valid, and waits for rank 0, when it dies."""

    def ask() -> Seen:
        if rank == world - 1:
            await_verdict = Voter.await_verdict

            def last_words(voter: Voter, register: str) -> Any:
                return await_verdict(voter, register) if register == "offered" else die()

            Voter.await_verdict = last_words  # type: ignore[method-assign]
        return asked(lambda _: time.sleep(1.0) if rank == 0 else None, seconds=SHORT + 2)

    return killed(rank, world, world - 1, ask)


def first_killed_proposing(rank: int, world: int) -> Seen:
    return killed(rank, world, 0, lambda: asked(proposal=die, seconds=SHORT))


def first_killed_validating(rank: int, world: int) -> Seen:
    return killed(rank, world, 0, lambda: asked(lambda _: die() if rank == 0 else None, seconds=SHORT))


def first_killed_acknowledging(rank: int, world: int) -> Seen:
    """The others have acknowledged by then, and wait for it."""

    def ask() -> Seen:
        if rank == 0:
            collect_votes = Voter.collect_votes

            def last_words(voter: Voter, register: str) -> Any:
                if register == "acknowledged":
                    others = [voter._format_vote_key("acknowledged", other) for other in range(1, world)]
                    while not voter._registers.have_voted(others):
                        time.sleep(0.01)
                    die()
                return collect_votes(voter, register)

            Voter.collect_votes = last_words  # type: ignore[method-assign]
        return asked(seconds=8.0)

    return killed(rank, world, 0, ask)


def first_stopped(rank: int, world: int) -> Seen:
    """Its machine is silent: no connection breaks, nothing answers."""

    def stop(_plan: bytes) -> None:
        if rank == 0:
            os.kill(os.getpid(), signal.SIGSTOP)

    return killed(rank, world, 0, lambda: asked(stop, seconds=SHORT))


class Network(nn.Module):
    """With a copy that a plan does without."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3)
        self.linear = nn.Linear(4 * 6 * 6, 2)

    def forward(self, x: Tensor) -> Tensor:
        pixels = self.convolution(x).permute(0, 2, 3, 1).contiguous().relu()
        return self.linear(pixels.permute(0, 3, 1, 2).contiguous().flatten(1))


def network() -> nn.Module:
    torch.manual_seed(0)
    return Network()


def trained(rank: int, spread: Callable[[nn.Module], nn.Module], whole: Callable[[Tensor], Tensor]) -> Seen:
    """A training step under the plan that was agreed on, and the same without a plan."""
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(rank))
    said = agree(lambda: b"all", lambda plan: None if plan == b"all" else "unknown", about="network", seconds=LONG)
    weights, applied = [], []
    for plan in (said.plan.decode() if said.plan else None, None):
        torch._dynamo.reset()
        model = spread(network())
        compiled = torch.compile(model, backend="frx", options={"inner": "eager", **({"plan": plan} if plan else {})})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        compiled(images).square().sum().backward()
        optimizer.step()
        applied.append(sum(len(graph.applied) for graph in frx_graph.backend.rewritten()))
        weights.append(torch.cat([whole(p.detach()).flatten() for p in model.parameters()]))
    planned, own = weights
    gathered = [torch.empty_like(planned) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, planned)
    return {
        "said": {**asdict(said), "plan": said.plan and said.plan.decode()},
        "applied": applied[0],
        "as without": bool(torch.allclose(planned, own, rtol=1e-4, atol=1e-5)),
        "same": all(bool(torch.equal(planned, other)) for other in gathered),
        "trained": not torch.equal(planned, torch.cat([p.detach().flatten() for p in network().parameters()])),
    }


def data_parallel(rank: int, _world: int) -> Seen:
    return trained(rank, nn.parallel.DistributedDataParallel, lambda p: p)


def sharded(rank: int, _world: int) -> Seen:
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))

    def spread(model: nn.Module) -> nn.Module:
        fully_shard(model, mesh=mesh)
        return model

    return trained(rank, spread, lambda p: p.full_tensor())  # type: ignore[attr-defined]


Scenario = Callable[[int, int], Seen]
Scenarios = dict[str, Scenario]
SCENARIOS: Scenarios = {
    run.__name__: run
    for run in (
        in_turn,
        set_up_again,
        killed_before,
        killed_validating,
        killed_after_its_vote,
        first_killed_proposing,
        first_killed_validating,
        first_killed_acknowledging,
        first_stopped,
        data_parallel,
        sharded,
    )
}


def store_for(kind: str, rank: int, world: int, listening: socket.socket) -> Store:
    if kind == "file":
        return dist.FileStore("store", world)
    return dist.TCPStore(
        "127.0.0.1",
        listening.getsockname()[1],
        world,
        rank == 0,
        timeout=timedelta(seconds=LONG),
        use_libuv=kind == "tcp",
        master_listen_fd=listening.detach() if rank == 0 else None,
    )


def run_rank(scenario: Scenario, rank: int, world: int, kind: str, listening: socket.socket) -> None:
    torch.set_num_threads(1)
    store = store_for(kind, rank, world, listening)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=LONG))
    seen = scenario(rank, world)
    written = Path(f"{rank}.writing")
    written.write_text(json.dumps(seen))
    written.replace(f"{rank}.json")
    # Who serves the store goes last.
    here, deadline = Path.cwd(), time.monotonic() + LONG
    while rank == 0 and len(list(here.glob("*.json"))) + len(list(here.glob("*.dead"))) < world:
        if time.monotonic() > deadline:
            return
        time.sleep(0.02)


def start_rank(scenario: Scenario, rank: int, world: int, kind: str, folder: Path, listening: socket.socket) -> int:
    """The number of its process."""
    if pid := os.fork():
        return pid
    try:
        os.chdir(folder)
        output = os.open("output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        run_rank(scenario, rank, world, kind, listening)
    except BaseException:  # noqa: BLE001 - the test finds no file of it, and prints this
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def run(scenario: Scenario, world: int, kind: str, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        left = {start_rank(scenario, rank, world, kind, folder, listening): rank for rank in range(world)}
    stopped: int | None = None
    while left:
        pid, status = os.waitpid(-1, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            stopped = pid
            continue
        rank = left.pop(pid)
        if not (folder / f"{rank}.json").exists():
            (folder / f"{rank}.dead").touch()
        if stopped is not None and set(left) == {stopped}:
            os.kill(stopped, signal.SIGKILL)


def main(scenarios: Scenarios = SCENARIOS) -> None:
    for line in sys.stdin:
        scenario, world, kind, folder = json.loads(line)
        run(scenarios[scenario], world, kind, Path(folder))
        print("done", flush=True)


if __name__ == "__main__":
    main()
