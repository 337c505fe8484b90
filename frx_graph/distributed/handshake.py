"""Make the ranks' handshake at their first compilation: the first rank names the graphs for which its ledger has plans.

A rank cannot know the ledger of another machine, and waiting for the first rank at every graph would slow programs
without plans. The result is valid for the lifetime of the process group. If a rank does not answer, the others wait for
it once, and ask no more.

Only a rank that reports its ledger imports a database here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ConfigDict
from torch import distributed as dist

from frx_graph.config import AdviseConfig, read_advise_config, read_policy_table
from frx_graph.distributed.consensus import Agreement, agree, has_several_ranks
from frx_graph.distributed.plan_offer import describe_options, find_difference
from frx_graph.errors import AgreementError, FrxError
from frx_graph.ledger.location import may_exist
from frx_graph.options import BackendOptions
from frx_graph.trials.policy import TrialPolicy

_TOPIC = "which graphs have a plan"


def may_have_plans(options: BackendOptions) -> bool:
    """Return False if no graph can have a plan: this rank, or of several the first, has no ledger. Raises
    `OptionError`, and what `Handshake.ensure_done` raises."""
    if has_several_ranks():
        return bool(get_handshake().ensure_done(options).signatures)
    return may_exist(read_advise_config(Path.cwd()).ledger)


class Handshake:
    """The ranks' knowledge of each other in one default process group. `signatures` identify the graphs for which the
    first rank's ledger has ever promoted a plan."""

    def __init__(self) -> None:
        self.signatures: frozenset[str] = frozenset()
        self._closed = False
        self._is_done = False
        # Another thread that compiles waits for the answers.
        self._lock = threading.RLock()

    def ensure_done(self, options: BackendOptions) -> Handshake:
        """Shake hands the first time. Raises `AgreementError` on the ranks that report a failure, and `OptionError` or
        `PolicyError` for this rank's project file once the others know of it."""
        with self._lock:
            if not self._is_done:
                self._is_done = True
                self._shake_hands(options)
        return self

    def covers(self, signature: str, options: BackendOptions) -> bool:
        """Return whether to ask the ranks about a graph; all ranks that hear of each other return the same."""
        return not self._closed and (options.mode == "autopilot" or signature in self.signatures)

    def agree_on(
        self,
        topic: str,
        seconds: float,
        proposal: Callable[[], bytes | None],
        valid: Callable[[bytes], str | None],
    ) -> bytes | None:
        """Return the plan that all ranks apply, or None. Raises `AgreementError`, if they disagree, on the first rank
        and on those that caused it."""
        if self._closed:
            return None
        found = agree(proposal, valid, about=topic, seconds=seconds)
        self._closed = found.silent
        return self._unwrap(found)

    def _shake_hands(self, options: BackendOptions) -> None:
        wrong: FrxError | None = None
        config, policy = AdviseConfig(), TrialPolicy()
        try:
            config = read_advise_config(Path.cwd())
            policy = options.policy or read_policy_table(config)
        except FrxError as error:
            wrong = error

        def propose() -> bytes | None:
            if wrong is not None:
                raise wrong
            signatures: tuple[str, ...] = ()
            if may_exist(config.ledger):
                from frx_graph.ledger.fast_path import read_promoted_signatures

                signatures = read_promoted_signatures(config.ledger)
            if not signatures and options.mode == "apply":
                return None
            greeting = _Greeting(options=describe_options(options, policy), signatures=signatures)
            return greeting.model_dump_json().encode()

        def validate(greeting: bytes) -> str | None:
            if wrong is not None:
                raise wrong
            return find_difference(_Greeting.model_validate_json(greeting).options, describe_options(options, policy))

        found = agree(propose, validate, about=_TOPIC, seconds=policy.agreement_seconds)
        self._closed = wrong is not None or bool(found.dissenters)
        if wrong is not None:
            raise wrong
        if (greeting := self._unwrap(found)) is not None:
            self.signatures = frozenset(_Greeting.model_validate_json(greeting).signatures)

    def _unwrap(self, found: Agreement) -> bytes | None:
        rank = dist.get_rank()
        if found.plan is None and found.dissenters and (rank in (0, *found.dissenters) or 0 in found.dissenters):
            raise AgreementError(found.reason, "no more plans are requested" if self._closed else "")
        return found.plan


class _Greeting(BaseModel):
    """The first rank's options, and the `hash_compilation` of each graph that it has plans for."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    options: dict[str, str]
    signatures: tuple[str, ...]


_handshakes: WeakKeyDictionary[dist.ProcessGroup, Handshake] = WeakKeyDictionary()
_making = threading.Lock()


def get_handshake() -> Handshake:
    """Return the handshake of the default process group, which must exist."""
    world = dist.group.WORLD
    assert world is not None
    with _making:
        return _handshakes.setdefault(world, Handshake())
