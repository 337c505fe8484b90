"""Have all ranks under `torch.distributed` agree on one plan, or on none.

No collective is used. The ranks read and write values in the store of the process group, through a separate connection
(`registers`). A decision is a register that is written once, by an atomic compare-and-set. A rank that times out later,
and would decide differently, reads the earlier decision. There are three registers, each decided by all ranks
(`voting`):

    offered        the first rank's plan, or the reason for none
    validated      all ranks find the plan valid; or the ranks that do not, and the reason
    acknowledged   all ranks have read the validation, and so were alive then

docs/distributed.md has the guarantees and their limits, docs/internals/agreement.md why no collective would do.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import distributed as dist

from frx_graph.distributed.registers import Verdict, connect_later
from frx_graph.distributed.voting import EarlierLifeError, Voter
from frx_graph.errors import summarize_error

_MAX_PLAN_BYTES = 4 * 2**20
"""A `TCPStore` closes the connection on messages of more than 8 MiB."""

Propose = Callable[[], bytes | None]
Validate = Callable[[bytes], str | None]


@dataclass(frozen=True, slots=True)
class Agreement:
    """The result: the `plan` that every rank applies from now on, or None for the baseline, for `reason`. `dissenters`
    are the ranks that caused that; of silent ones the first 16. `silent`: a rank has not answered in time, and may not
    again. Not `certain`: the store was lost, and others may have agreed."""

    plan: bytes | None
    reason: str
    dissenters: tuple[int, ...] = ()
    silent: bool = False
    certain: bool = True


def agree(proposal: Propose, valid: Validate, *, about: str, seconds: float) -> Agreement:
    """Return what all ranks agree on when the first one proposes a plan for `about`. Every rank must call this for the
    same `about`, such as a graph's signature, equally often. `proposal` runs on the first rank, and returns None for no
    plan. `valid` runs on all, and returns an objection, or None. Their exceptions are a dissent; `KeyboardInterrupt`
    and `SystemExit` are also raised. Beside their time, which nothing cuts short, this takes at most `seconds`, and
    twice `GRACE_SECONDS` if the store does not answer. A lost store raises nothing. Without other ranks it returns at
    once."""
    if not has_several_ranks():
        return _decide_alone(proposal, valid)
    ranks = range(dist.get_world_size())
    voter = Voter(ranks, dist.get_rank(), seconds, connect_later(ranks, about))
    try:
        return negotiate(voter, proposal, valid)
    except Exception as error:  # noqa: BLE001 - stores raise more than their own errors
        return leave(voter, error)
    except BaseException:
        voter.interrupt()
        raise


def negotiate(voter: Voter, proposal: Propose, valid: Validate) -> Agreement:
    """Offer or receive a plan, and vote on it, until the offer is of this life. Raises what the store raises."""
    offer = _make_offer(proposal, voter.rank) if voter.rank == voter.ranks[0] else None
    while True:
        offered = voter.call(voter.receive_offer if offer is None else partial(voter.offer, offer))
        plan = offered.decode_plan()
        if plan is None:
            return Agreement(None, offered.why, offered.ranks, offered.silent)
        objection = _find_objection(valid, plan)
        try:
            decided = voter.call(partial(voter.vote, objection))
        except EarlierLifeError:
            continue
        return Agreement(plan if decided.yes else None, decided.why, decided.ranks, decided.silent)


def leave(voter: Voter, error: Exception) -> Agreement:
    """Return the agreement of a rank that has lost the store; before it acknowledges, no rank can apply the plan."""
    why = f"rank {voter.rank} has lost the others: {summarize_error(error)}"
    return Agreement(None, why, (voter.rank,), silent=True, certain=voter.give_up())


def has_several_ranks() -> bool:
    """Return whether this process is one of several ranks under `torch.distributed`."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def is_first_rank() -> bool:
    """Return whether this process is the first rank, or the only process. Before the process group exists, the
    launcher's variable decides."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank() == 0
    return os.environ.get("RANK", "0") == "0"


def _decide_alone(proposal: Propose, valid: Validate) -> Agreement:
    offered = _make_offer(proposal, 0)
    plan = offered.decode_plan()
    if plan is None:
        return Agreement(None, offered.why, offered.ranks)
    objection = _find_objection(valid, plan)
    return Agreement(plan, "there are no other ranks") if objection is None else Agreement(None, objection, (0,))


def _make_offer(proposal: Propose, rank: int) -> Verdict:
    try:
        plan = proposal()
    except Exception as error:  # noqa: BLE001 - all ranks hear of it
        return Verdict(False, f"rank {rank}: {summarize_error(error)}", (rank,))
    if plan is None:
        return Verdict(False, "nothing was proposed")
    if len(plan) > _MAX_PLAN_BYTES:
        return Verdict(False, f"rank {rank}: the plan has {len(plan)} bytes, and may have {_MAX_PLAN_BYTES}", (rank,))
    return Verdict(True, "", offer=base64.b64encode(plan).decode())


def _find_objection(valid: Validate, plan: bytes) -> str | None:
    try:
        return valid(plan)
    except Exception as error:  # noqa: BLE001 - all ranks hear of it
        return summarize_error(error)
