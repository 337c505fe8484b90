"""Decide the order of the arms in each process pair: quads of ABBA and BAAB.

Arms that run one after the other (all of A, then all of B) also differ by changes of the machine in between. In a quad
both arms have the same mean position, so a drift that is linear over the four blocks cancels out, and slow noise mostly
does. ABBA and BAAB alternate. So an effect of the inner blocks, which follow a block of the same arm, cancels out over
two quads. For comparison, Google Benchmark's random interleaving reduced the variance between runs by 40 %. Hyperfine
runs one command after the other and warns of outliers.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from frx_graph.trials.protocol import Protocol


class Arm(enum.StrEnum):
    """The two programs of a trial."""

    BASELINE = "baseline"
    CANDIDATE = "candidate"


@dataclass(frozen=True, slots=True)
class Quad:
    """Four blocks in a row, two of each arm, in one pair of processes."""

    pair: int
    """Counted from 0; each pair is two fresh processes."""
    number: int
    """The quad's number in its pair, counted from 0."""
    arms: tuple[Arm, Arm, Arm, Arm]


ABBA = (Arm.BASELINE, Arm.CANDIDATE, Arm.CANDIDATE, Arm.BASELINE)
BAAB = (Arm.CANDIDATE, Arm.BASELINE, Arm.BASELINE, Arm.CANDIDATE)


def make_schedule(protocol: Protocol) -> tuple[Quad, ...]:
    """Return all quads of a trial in order; the same for the same seed. Pairs that were added follow the others."""
    first = protocol.process_pairs - protocol.added_pairs
    quads = arrange_quads(first, protocol.quads_per_pair, protocol.seed)
    added = arrange_quads(protocol.added_pairs, protocol.quads_per_pair, protocol.seed + 1)
    return quads + tuple(replace(quad, pair=first + quad.pair) for quad in added)


def arrange_quads(process_pairs: int, quads_per_pair: int, seed: int) -> tuple[Quad, ...]:
    """Return quads in order; the same for the same seed. Within a pair the two orders alternate. The first order of a
    pair, and so the arm whose process starts first, is drawn; both begin equally often, give or take one."""
    draw = random.Random(seed)
    offset = draw.randrange(2)
    starts = [(pair + offset) % 2 for pair in range(process_pairs)]
    draw.shuffle(starts)
    return tuple(
        Quad(pair, number, (ABBA, BAAB)[(start + number) % 2])
        for pair, start in enumerate(starts)
        for number in range(quads_per_pair)
    )


def select_next_quad(plan: Sequence[Quad], done: Collection[Quad]) -> Quad | None:
    """Return the first quad of `plan` that is not done: a void one again at once, in the same processes and order. None
    when all are done."""
    return next((quad for quad in plan if quad not in done), None)
