"""Define the first rank's offer of a plan for a graph, and the objections of the others."""

from __future__ import annotations

import re

from pydantic import BaseModel, ConfigDict

from frx_graph.compiler.code_fingerprint import compute_code_hash
from frx_graph.compiler.plans import make_recorded_plan
from frx_graph.options import BackendOptions
from frx_graph.plan import Plan
from frx_graph.records import Candidate
from frx_graph.trials.policy import TrialPolicy

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class PlanOffer(BaseModel):
    """The first rank's offer of `plan`, a hash, for the graph with this `signature` in this `environment`, made by this
    `code` under `options`; None if it is about to search for one."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    options: dict[str, str]
    signature: str
    code: str
    environment: str
    plan: str | None = None
    candidates: tuple[Candidate, ...] = ()

    @staticmethod
    def make(
        plan: Plan | None, *, options: BackendOptions, policy: TrialPolicy, signature: str, environment: str
    ) -> PlanOffer:
        """Return this rank's offer of `plan`."""
        return PlanOffer(
            options=describe_options(options, policy),
            signature=signature,
            code=compute_code_hash(),
            environment=environment,
            plan=None if plan is None else plan.hash,
            candidates=() if plan is None else plan.candidates,
        )

    def encode(self) -> bytes:
        """Return the offer as JSON."""
        return self.model_dump_json().encode()

    def make_plan(self) -> Plan:
        """Return the plan that this rank's code makes of the candidates."""
        return make_recorded_plan(self.candidates)

    def find_objection(self, own: PlanOffer) -> str | None:
        """Return the objection to this offer on a rank that would offer `own`; None if there is none."""
        if (differs := find_difference(self.options, own.options)) is not None:
            return differs
        for what, theirs, ours in (
            ("graph", self.signature, own.signature),
            ("code of frx_graph", self.code, own.code),
            ("environment", self.environment, own.environment),
        ):
            if theirs != ours:
                return f"its {what} is {ours}, not {theirs}"
        if self.plan is not None and (made := self.make_plan().hash) != self.plan:
            return f"it makes plan {made} of the candidates of {self.plan}"
        return None


def describe_options(options: BackendOptions, policy: TrialPolicy) -> dict[str, str]:
    """Return the options that all ranks must share, as texts that are equal in every process: with the policy, if the
    autopilot may run trials by it."""
    found = {name: getattr(options, name) for name in ("mode", "inner", "inner_mode")}
    found["inner_options"] = sorted(options.inner_options.items())
    found["policy"] = policy.hash if options.mode == "autopilot" else None
    return {name: _ADDRESS.sub("", repr(value)) for name, value in found.items()}


def find_difference(first: dict[str, str], own: dict[str, str]) -> str | None:
    """Describe an option in which this rank differs from the first; None if there is none."""
    names = sorted(name for name in {*first, *own} if first.get(name) != own.get(name))
    return f"its option {names[0]!r} is {own.get(names[0])}, not {first.get(names[0])}" if names else None
