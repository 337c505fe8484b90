"""What the first rank tells the others once, when they first compile: for which graphs its ledger has plans at all.

Why: a rank cannot know what another machine's ledger holds, and to wait for the first rank at every graph would cost
all those who have no plan for any. What is heard goes for the process group's lifetime. A rank that does not answer is
waited for once: after that nobody asks any more.

No database is imported here but on a rank that says what its ledger holds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ConfigDict
from torch import distributed as dist

from frx_graph.config import AdviseConfig, advise_config, policy_of
from frx_graph.distributed.consensus import Agreement, agree
from frx_graph.distributed.plan_offer import described, difference
from frx_graph.errors import AgreementError, FrxError
from frx_graph.ledger.default_place import may_be_there
from frx_graph.options import BackendOptions
from frx_graph.trials.policy import TrialPolicy

_ABOUT = "which graphs have a plan"


def may_have_plans(options: BackendOptions) -> bool:
    """False where no graph can have a plan, as nobody has a ledger: of several ranks the first. Raises as
    `RankOpening.open` does, or `OptionError`."""
    if several_ranks():
        return bool(rank_opening().open(options).signatures)
    return may_be_there(advise_config(Path.cwd()).ledger)


def several_ranks() -> bool:
    """True in a process that is one of several under `torch.distributed`."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


@dataclass(frozen=True, slots=True)
class Ask:
    """How ranks are asked: `about` as for `agree`, and for how many seconds."""

    about: str
    seconds: float


class RankOpening:
    """What the ranks of one default process group know of each other. `signatures` are those of the graphs that the
    first rank's ledger has ever promoted a plan for."""

    def __init__(self) -> None:
        self.signatures: frozenset[str] = frozenset()
        self._closed = False
        self._opened = False
        # Another thread that compiles waits for what is being asked.
        self._lock = threading.RLock()

    def open(self, options: BackendOptions) -> RankOpening:
        """Asks, the first time. Raises `AgreementError` if that fails on a rank that is to tell, and then only; what is
        wrong in this rank's project file (`OptionError`, `PolicyError`) when the others know of it."""
        with self._lock:
            if not self._opened:
                self._opened = True
                self._ask_first(options)
        return self

    def asks_about(self, signature: str, options: BackendOptions) -> bool:
        """Whether ranks are to be asked about the graph that is compiled by this name. All that hear of each other
        say the same."""
        return not self._closed and (options.mode == "autopilot" or signature in self.signatures)

    def ask(self, ask: Ask, proposal: Callable[[], bytes | None], valid: Callable[[bytes], str | None]) -> bytes | None:
        """What all ranks apply, None if there is nothing. Raises `AgreementError` where they disagree, on the first
        rank and on those who are the reason; the others, if these can tell it, get None."""
        if self._closed:
            return None
        found = agree(proposal, valid, about=ask.about, seconds=ask.seconds)
        self._closed = found.silent
        return self._told(found)

    def _ask_first(self, options: BackendOptions) -> None:
        wrong: FrxError | None = None
        config, policy = AdviseConfig(), TrialPolicy()
        try:
            config = advise_config(Path.cwd())
            policy = options.policy or policy_of(config)
        except FrxError as error:
            wrong = error

        def propose() -> bytes | None:
            if wrong is not None:
                raise wrong
            signatures = _promoted(config)
            if not signatures and options.mode == "apply":
                return None
            return _Known(options=described(options, policy), signatures=signatures).model_dump_json().encode()

        def valid(known: bytes) -> str | None:
            if wrong is not None:
                raise wrong
            return difference(_Known.model_validate_json(known).options, described(options, policy))

        found = agree(propose, valid, about=_ABOUT, seconds=policy.agreement_seconds)
        self._closed = wrong is not None or bool(found.dissenters)
        if wrong is not None:
            raise wrong
        if (known := self._told(found)) is not None:
            self.signatures = frozenset(_Known.model_validate_json(known).signatures)

    def _told(self, found: Agreement) -> bytes | None:
        rank = dist.get_rank()
        if found.plan is None and found.dissenters and (rank in (0, *found.dissenters) or 0 in found.dissenters):
            raise AgreementError(found.reason, "no plan is asked for any more" if self._closed else "")
        return found.plan


class _Known(BaseModel):
    """What the first rank says of itself. `signatures`: `compiled_signature` of graphs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    options: dict[str, str]
    signatures: tuple[str, ...]


def _promoted(config: AdviseConfig) -> tuple[str, ...]:
    if not may_be_there(config.ledger):
        return ()
    from frx_graph.ledger.promoted_signatures import promoted_signatures

    return promoted_signatures(config.ledger)


_openings: WeakKeyDictionary[dist.ProcessGroup, RankOpening] = WeakKeyDictionary()
_making = threading.Lock()


def rank_opening() -> RankOpening:
    """That of the default process group, of which there has to be one."""
    world = dist.group.WORLD
    assert world is not None
    with _making:
        return _openings.setdefault(world, RankOpening())
