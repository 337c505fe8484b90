"""The settings of a tune: checked once, kept in its folder, and compared when it is resumed."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from frx_graph.engines.engine import EngineName
from frx_graph.trials.policy import TUNE_POLICY, TrialPolicy
from frx_graph.trials.protocol import Protocol, make_protocol

_QUADS = 4
"""Quads in each pair of processes, since blocks are longer than those of other trials."""
_SUCCESSIVE_QUADS = 2
"""In each group of processes if each block is a process: twelve quads in all; nine are as few as can end in a
promotion, see `compute_safe_t`."""


class TuneSettings(BaseModel):
    """The flags of `frx tune`, and the command."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    command: tuple[str, ...] = Field(min_length=1)
    name: str = "frx-tune"
    max_trials: int = Field(default=12, ge=1)
    safe: bool = True
    allow_risky_actions: bool = False
    time_budget_s: float = Field(default=60.0, gt=0)
    warmup_steps: int = Field(default=5, ge=1)
    measure_steps: int = Field(default=20, ge=2)
    repeat_count: int = Field(default=1, ge=1)
    race: bool = True
    race_promote_count: int = Field(default=3, ge=1)
    race_warmup_steps: int = Field(default=1, ge=1)
    race_measure_steps: int = Field(default=5, ge=2)
    bottleneck: str | None = None
    min_speedup: float = Field(default=0.08, gt=0, le=10)
    quality_checks: bool = True
    max_final_loss_regression: float = Field(default=0.05, ge=0)
    max_loss_divergence: float = Field(default=0.5, ge=0)
    output_abs_tolerance: float = Field(default=0.005, ge=0)
    allow_nonfinite_loss: bool = False
    sample_interval_ms: int = Field(default=1000, ge=10)
    candidates: tuple[tuple[tuple[str, str], ...], ...] = ()
    """The user's own candidates, each a set of variables."""
    families: tuple[str, ...] = ()
    """The families to try; empty for all."""
    one_at_a_time: bool = False
    ignore_load: bool = False
    engine: EngineName = EngineName.LOCAL
    seed: int = 0

    def make_protocol(self, candidates: int, *, successive: bool = False) -> Protocol:
        """Return rule R for one of `candidates`. From 8 % on it is enough that all process pairs lean the same way, see
        docs/internals/trials.md."""
        policy = TUNE_POLICY if self.min_speedup >= TUNE_POLICY.minimum_speedup else TrialPolicy()
        changed = {
            "minimum_speedup": self.min_speedup,
            "extra_process_pairs": 0,
            "process_pairs": policy.process_pairs * self.repeat_count,
            "quads_per_pair": _SUCCESSIVE_QUADS if successive else _QUADS,
            "steps_per_block": self.block_steps,
            "seed": self.seed,
        }
        return make_protocol(policy.model_copy(update=changed), candidates)

    @property
    def block_steps(self) -> int:
        """Half of `measure_steps`: a quad has two blocks of each arm."""
        return -(-self.measure_steps // 2)
