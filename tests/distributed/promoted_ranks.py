"""Ranks for `test_promoted_ranks.py`, which compile a network with backend="frx"; they are launched as those in
`agreement_ranks.py`.

Each scenario runs programs in turn, in process groups of their own. `Turn` says what is otherwise on which rank.
"""

from __future__ import annotations

import functools
import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from agreement_ranks import LONG, SHORT, Seen, die, main, network
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from unproved_promotions import everything_made as everything_made_of
from unproved_promotions import promotion

from frx_graph import backend
from frx_graph.autopilot import search
from frx_graph.compiler.fallback import LazyBaseline
from frx_graph.distributed import handshake
from frx_graph.distributed.consensus import agree
from frx_graph.distributed.plan_offer import PlanOffer
from frx_graph.errors import SerializationError
from frx_graph.ledger.database.opening import open_ledger, open_to_read
from frx_graph.ledger.decision import AUTOPILOT, Decision, Kind, make_process_author
from frx_graph.ledger.location import parse_location
from frx_graph.monitor import canary

EAGER = {"inner": "eager"}
STEPS = 40
"""Enough for one canary and another look."""
TRIAL = '{"schema": "frx_trial_v1", "verdict": "promote"}'


def alone(model: nn.Module) -> nn.Module:
    return model


def sharded(model: nn.Module) -> nn.Module:
    fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),)))
    return model


def split(model: nn.Module) -> nn.Module:
    """With a bucket for each layer: Dynamo's graph is split there, and compiled with fake inputs."""
    dist._DEFAULT_FIRST_BUCKET_BYTES = 100
    return nn.parallel.DistributedDataParallel(model, bucket_cap_mb=2e-4)


SPREADS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "alone": alone,
    "data parallel": nn.parallel.DistributedDataParallel,
    "split": split,
    "sharded": sharded,
}


def images(rank: int) -> Tensor:
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(rank))


def everything_promoted(spread: str, rank: int) -> list[Decision]:
    """What is to be recorded so that all that can be made of the network's graphs is."""
    return everything_made(SPREADS[spread](network()), images(rank))


def everything_made(model: nn.Module, *inputs: Tensor) -> list[Decision]:
    """The same for a model that is called with these, and, where gradients are recorded, its backward."""

    def run(backend: Any) -> None:
        torch._dynamo.reset()
        result = torch.compile(model, backend=backend)(*inputs)
        if torch.is_grad_enabled():
            result.sum().backward()

    signatures, made = everything_made_of("eager", run)
    assert made
    return [decision for signature in signatures for decision in promotion(signature, made, decided_by=AUTOPILOT)]


@dataclass(frozen=True)
class Turn:
    """A program of all ranks. `prepare` is called before, with the rank and what is to be promoted, in its folder, and
    gives the rank's options beside the inner compiler; `times` is how often it is compiled."""

    prepare: Callable[[int, list[Decision]], dict[str, Any]]
    spread: str = "alone"
    seconds: float = LONG
    times: int = 1
    ledger_of_first: bool = True
    policy: str = ""


def ledger_file(rank: int) -> Path:
    return Path(f"ledger-{rank}.sqlite3").absolute()


def keep(rank: int, decisions: list[Decision]) -> None:
    """In a ledger of the rank's own."""
    os.environ["FRX_LEDGER"] = str(ledger_file(rank))
    open_ledger(parse_location(str(ledger_file(rank)))).append(decisions)


def plain(rank: int, decisions: list[Decision]) -> dict[str, Any]:
    return {}


def run(name: str, turn: Turn, rank: int, decisions: list[Decision]) -> Seen:
    """What a rank saw of a training step under `turn`, as often as that says."""
    folder = Path.cwd() / f"{name} {rank}"
    folder.mkdir()
    before, was = Path.cwd(), dict(os.environ)
    os.chdir(folder)
    table = f"[tool.frx.policy]\nagreement_seconds = {turn.seconds}\n{turn.policy}"
    Path("pyproject.toml").write_text(table)
    os.environ["XDG_DATA_HOME"] = str(folder)
    os.environ.pop("FRX_LEDGER", None)
    if rank == 0 and turn.ledger_of_first:
        keep(rank, decisions)
    asked: list[str] = []

    def noted(*args: Any, about: str, **how: Any) -> Any:
        asked.append(about)
        return agree(*args, about=about, **how)

    handshake.agree = noted  # type: ignore[attr-defined]
    options = {**EAGER, **turn.prepare(rank, decisions)}
    model = SPREADS[turn.spread](network())
    said, made, right, took, counts = [], [], [], [], []
    for _ in range(turn.times):
        torch._dynamo.reset()
        backend.clear()
        asked.clear()
        x = images(rank)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            start = time.monotonic()
            found = torch.compile(model, backend="frx", options=options)(x)
            took.append(time.monotonic() - start)
            found.square().sum().backward()
        said.append([str(w.message) for w in caught if "frx" in str(w.message)])
        made.append([candidate.rewrite for done in backend.rewritten() for candidate in done.applied])
        right.append(bool(torch.allclose(found, network()(x), rtol=1e-4, atol=1e-5)))
        counts.append(len(asked))
    file = next(iter(sorted(folder.glob("**/*.sqlite3"))), None)
    events = open_to_read(parse_location(str(file))).read_events() if file is not None else ()
    kinds = [event.decision.kind.value for event in events]
    os.chdir(before)
    os.environ.clear()
    os.environ.update(was)
    return {"said": said, "made": made, "right": right, "took": took, "asked": counts, "kinds": kinds}


def in_turns(turns: dict[str, Turn], rank: int, world: int) -> Seen:
    seen: Seen = {}
    decisions: dict[str, list[Decision]] = {}
    for name, turn in turns.items():
        if turn.spread not in decisions:
            decisions[turn.spread] = everything_promoted(turn.spread, rank)
        dist.barrier()
        dist.destroy_process_group()
        # Before the ranks meet, so that none is late for what was done to another.
        store = dist.FileStore(str(Path(f"store {name}").absolute()), world)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
        dist.barrier()
        all_made = [candidate.rewrite for candidate in decisions[turn.spread][0].candidates]
        graphs = len({decision.signature for decision in decisions[turn.spread]})
        seen[name] = {"all": all_made, "graphs": graphs, **run(name, turn, rank, decisions[turn.spread])}
    return seen


def last(rank: int) -> bool:
    return rank == dist.get_world_size() - 1


def rolled_back(rank: int, decisions: list[Decision]) -> dict[str, Any]:
    if last(rank):
        author = make_process_author("somebody")
        keep(rank, [*decisions, decisions[-1].make_follow_up(Kind.ROLLED_BACK, reason="no", by=author, at=now())])
    return {}


def damaged(rank: int, decisions: list[Decision]) -> dict[str, Any]:
    if last(rank):
        os.environ["FRX_LEDGER"] = str(ledger_file(rank).with_suffix(".damaged"))
        ledger_file(rank).with_suffix(".damaged").write_bytes(b"no database" * 1000)
    return {}


def now() -> datetime:
    return datetime.now(UTC)


def other_option(rank: int, _decisions: list[Decision]) -> dict[str, Any]:
    return {"inner": "aot_eager"} if last(rank) else {}


def other_environment(rank: int, _decisions: list[Decision]) -> dict[str, Any]:
    if last(rank):
        os.environ["KMP_BLOCKTIME"] = "1"
    return {}


def wrong_project(rank: int, _decisions: list[Decision]) -> dict[str, Any]:
    if last(rank):
        Path("pyproject.toml").write_text("[tool.frx]\nledgr = 'here'\n")
    return {}


def slow(rank: int, _decisions: list[Decision]) -> dict[str, Any]:
    if last(rank):
        time.sleep(SHORT + 2)
    return {}


def dies(rank: int, _decisions: list[Decision]) -> dict[str, Any]:
    """The last rank, when it is asked about the plan."""
    if last(rank):
        PlanOffer.find_objection = lambda *_: die()  # type: ignore[method-assign]
    return {}


def proving(rank: int, decisions: list[Decision], seconds: float = 0.0) -> dict[str, Any]:
    def try_graph(*_: Any, signature: str, record: Any, **__: Any) -> None:
        assert rank == 0
        time.sleep(seconds)
        record(promotion(signature, decisions[0].candidates, decided_by=AUTOPILOT))

    search.try_graph = try_graph  # type: ignore[assignment]
    return {"mode": "autopilot"}


def proving_too_long(rank: int, decisions: list[Decision]) -> dict[str, Any]:
    return proving(rank, decisions, seconds=2 * SHORT + 4)


def harmed(rank: int, _decisions: list[Decision]) -> dict[str, Any]:
    """On the last rank every plan makes NaN from now on."""
    real = backend.make_planned_backend

    def compiling(options: Any, plan: Any, failed: Any) -> Callable[..., Any]:
        compile_graph = real(options, plan, failed)
        if plan is None:
            return compile_graph

        def compile_and_spoil(*args: Any, **how: Any) -> Callable[..., Any]:
            program = compile_graph(*args, **how)
            return lambda *args: tuple(value * torch.nan for value in program(*args))

        return compile_and_spoil

    if last(rank):
        backend.make_planned_backend = compiling  # type: ignore[assignment]
    return {}


def unable(rank: int, decisions: list[Decision]) -> dict[str, Any]:
    def try_graph(*_: Any, **__: Any) -> None:
        raise SerializationError("an operator of the script")

    search.try_graph = try_graph  # type: ignore[assignment]
    return {"mode": "autopilot"}


AS_PROMOTED = {
    "data parallel": Turn(plain, "data parallel", times=2),
    "split": Turn(plain, "split"),
    "sharded": Turn(plain, "sharded"),
}
OTHERWISE = {
    "nothing": Turn(plain, ledger_of_first=False, times=2),
    "rolled back": Turn(rolled_back),
    "damaged": Turn(damaged),
    "option": Turn(other_option, times=2),
    "environment": Turn(other_environment),
    "project": Turn(wrong_project, times=2),
    "slow": Turn(slow, seconds=SHORT, times=2),
    "proved": Turn(proving, ledger_of_first=False, times=2),
    "not proved": Turn(unable, ledger_of_first=False),
    "proved too late": Turn(
        proving_too_long, seconds=2 * SHORT, policy="time_budget_seconds = 1\n", ledger_of_first=False, times=2
    ),
    "harmed": Turn(harmed, times=2),
}


class Between(nn.Module):
    """Convolutions that want another layout, and what all ranks have of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor, own: Tensor) -> Tensor:
        return self.second(all_reduce(self.first(x).relu(), "sum", dist.group.WORLD).relu()) + own


def across(rank: int, _world: int) -> Seen:
    """Three steps of a graph with a collective, under a promoted plan. The first has no finite result on the last rank:
    what is computed once more there only would meet the others' next collective."""
    torch.manual_seed(0)
    model = Between().eval()
    nothing = torch.zeros(())
    first = torch.tensor(torch.nan) if last(rank) else nothing
    with torch.no_grad():
        expected = [model(images(rank + step), nothing) for step in range(3)]
        decisions = everything_made(model, images(rank), nothing)
        if rank == 0:
            keep(rank, decisions)
        torch._dynamo.reset()
        backend.clear()
        dist.barrier()
        compiled = torch.compile(model, backend="frx", options=EAGER, fullgraph=True)
        found = [compiled(images(rank + step), nothing if step else first) for step in range(3)]
    made = [candidate.rewrite for done in backend.rewritten() for candidate in done.applied]
    right = [torch.allclose(one, other, rtol=1e-4, atol=1e-5) for one, other in zip(found, expected, strict=True)]
    return {"made": made, "right": right}


def stepping(rank: int, _world: int, spread: str) -> Seen:
    """Training steps under a promoted plan that is measured again after each look."""
    # How long steps take is another matter: of two ranks on a busy machine, anything.
    canary.judge_quads = lambda *_: canary.Finding(None)  # type: ignore[attr-defined]
    Path("pyproject.toml").write_text("[tool.frx.policy]\ncanary_interval_steps = 1\nsteps_per_block = 1\n")
    decisions = everything_promoted(spread, rank)
    if rank == 0:
        keep(rank, decisions)
    dist.barrier()
    torch._dynamo.reset()
    backend.clear()
    gradient, program = torch.autograd.grad, LazyBaseline.get_program
    # Whether all that gradients are compared by has its memory, each time that they are.
    compared: list[bool] = []
    baselines: list[int] = []

    def noted(outputs: Any, inputs: Sequence[Tensor], *args: Any, **how: Any) -> Any:
        if all(type(each) is Tensor for each in inputs):
            compared.append(all(each.untyped_storage().nbytes() > 0 for each in inputs))
        return gradient(outputs, inputs, *args, **how)

    def counted(self: LazyBaseline, args: Any) -> Any:
        baselines.append(1)
        return program(self, args)

    torch.autograd.grad = noted
    LazyBaseline.get_program = counted  # type: ignore[method-assign]
    model, other = (SPREADS[spread](network()) for _ in range(2))
    compiled = torch.compile(model, backend="frx", options=EAGER)
    right = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(STEPS):
            for one in (compiled, other):
                one(images(rank + step)).square().sum().backward()
            pairs = zip(model.parameters(), other.parameters(), strict=True)
            right.append(all(torch.allclose(whole(a.grad), whole(b.grad), rtol=1e-3, atol=1e-4) for a, b in pairs))
    return {
        "right": right,
        "said": [str(w.message) for w in caught if "frx" in str(w.message)],
        "applied": sum(len(done.applied) for done in backend.rewritten()),
        "compared": compared,
        "baselines": len(baselines),
    }


def whole(gradient: Tensor) -> Tensor:
    return gradient.full_tensor() if isinstance(gradient, DTensor) else gradient


def as_promoted(rank: int, world: int) -> Seen:
    return in_turns(AS_PROMOTED, rank, world)


def otherwise(rank: int, world: int) -> Seen:
    return in_turns(OTHERWISE, rank, world)


def killed(rank: int, world: int) -> Seen:
    return in_turns({"killed": Turn(dies, seconds=2 * SHORT, times=2)}, rank, world)


if __name__ == "__main__":
    scenarios = {scenario.__name__: scenario for scenario in (as_promoted, otherwise, killed, across)}
    main({**scenarios, **{f"stepping {spread}": functools.partial(stepping, spread=spread) for spread in SPREADS}})
