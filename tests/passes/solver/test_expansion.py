"""What is left when exact answers are out of reach: never worse than any start."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.passes.solver.arrays import InstanceArrays
from frx_graph.passes.solver.expansion import solve_by_expansion
from frx_graph.passes.solver.instance import INFINITE, Asker, Charge, Instance, Variable
from frx_graph.passes.solver.moves import find_best_move

LABELS = "abcd"


@st.composite
def instances(draw: st.DrawFn) -> Instance:
    """Few variables, and charges of any shape, infinite ones too."""
    sizes = draw(st.lists(st.integers(2, 4), min_size=2, max_size=5))
    ticks = st.integers(0, 12).map(lambda number: number if number < 12 else INFINITE)
    variables = tuple(
        Variable(
            costs=tuple(draw(st.lists(st.integers(0, 20), min_size=size, max_size=size))),
            labels=tuple(draw(st.permutations(LABELS)))[:size],
            start=draw(st.integers(0, size - 1)),
        )
        for size in sizes
    )
    charges = []
    for _ in range(draw(st.integers(1, 8))):
        payer = draw(st.integers(0, len(sizes) - 1))
        askers = draw(st.lists(st.integers(0, len(sizes) - 1), min_size=1, max_size=3, unique=True))
        charges.append(
            Charge(
                payer=payer,
                prices=tuple(draw(st.lists(ticks, min_size=sizes[payer], max_size=sizes[payer]))),
                askers=tuple(
                    Asker(asker, tuple(draw(st.lists(st.booleans(), min_size=sizes[asker], max_size=sizes[asker]))))
                    for asker in askers
                ),
            )
        )
    return Instance(variables, tuple(charges))


def choices_of(instance: Instance) -> list[tuple[int, ...]]:
    return list(itertools.product(*(range(len(variable.costs)) for variable in instance.variables)))


def ticks_of(instance: Instance, choices: tuple[int, ...]) -> tuple[int, int]:
    """As in the definitions of `Instance` and `Charge`: infinite costs, then the finite ones."""
    paid = [variable.costs[choice] for variable, choice in zip(instance.variables, choices, strict=True)]
    paid += [
        charge.prices[choices[charge.payer]]
        for charge in instance.charges
        if any(asker.asks[choices[asker.variable]] for asker in charge.askers)
    ]
    endless = sum(ticks >= INFINITE for ticks in paid)
    return endless, sum(ticks for ticks in paid if ticks < INFINITE)


@given(instances(), st.data())
def test_arrays_cost_the_same(instance: Instance, data: st.DataObject) -> None:
    choices = data.draw(st.sampled_from(choices_of(instance)))
    assert InstanceArrays.from_instance(instance).sum_ticks(np.array(choices)) == ticks_of(instance, choices)


@given(instances(), st.data())
def test_a_move_is_never_dearer_and_a_tight_one_the_best(instance: Instance, data: st.DataObject) -> None:
    keep, propose = (data.draw(st.sampled_from(choices_of(instance))) for _ in range(2))
    move = find_best_move(InstanceArrays.from_instance(instance), np.array(keep), np.array(propose))
    moved = ticks_of(instance, tuple(move.choices.tolist()))
    assert moved <= ticks_of(instance, keep) or ticks_of(instance, keep)[0] > 0
    if move.tight:
        reachable = itertools.product(*({k, p} for k, p in zip(keep, propose, strict=True)))
        least = min(ticks_of(instance, choices) for choices in reachable)
        # What it costs beyond an infinite cost that cannot be avoided, nobody asks.
        assert moved == least or min(moved[0], least[0]) > 0


ASKS_FIRST, ASKS_SECOND = (True, False), (False, True)


@pytest.mark.parametrize(
    ("costs", "charge", "best"),
    [
        # The one price is higher on the side of who asks.
        (((0, 1), (0, 10)), Charge(0, (5, 0), (Asker(1, ASKS_FIRST),)), (1, 0)),
        (((1, 0), (10, 0)), Charge(0, (0, 5), (Asker(1, ASKS_SECOND),)), (0, 1)),
        # One asks with what is kept, the other with what is proposed, and it is paid once.
        (((0, 9), (0, 9), (3, 0)), Charge(0, (5, 5), (Asker(1, ASKS_FIRST), Asker(2, ASKS_SECOND))), (0, 0, 1)),
    ],
)
def test_what_a_cut_cannot_express_is_not_called_the_best(
    costs: tuple[tuple[int, ...], ...], charge: Charge, best: tuple[int, ...]
) -> None:
    instance = Instance(tuple(Variable(own, ("a", "b"), 0) for own in costs), (charge,))
    assert ticks_of(instance, best) == min(ticks_of(instance, choices) for choices in choices_of(instance))
    keep = np.zeros(len(costs), dtype=np.int64)
    move = find_best_move(InstanceArrays.from_instance(instance), keep, 1 - keep)
    moved = tuple(move.choices.tolist())
    assert not move.tight
    assert moved != best
    assert ticks_of(instance, moved) <= ticks_of(instance, (0,) * len(costs))


@pytest.mark.integration
@given(instances())
def test_expansion_is_never_dearer_than_the_program_nor_one_label_everywhere(instance: Instance) -> None:
    starts = [tuple(variable.start for variable in instance.variables)]
    starts += [
        tuple(v.labels.index(label) if label in v.labels else v.start for v in instance.variables) for label in LABELS
    ]
    least = min(ticks_of(instance, start) for start in starts)
    if least[0] == 0:
        assert ticks_of(instance, solve_by_expansion(instance)) <= least
