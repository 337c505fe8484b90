"""The cheapest labels, exactly where that is feasible."""

from __future__ import annotations

from dataclasses import dataclass

from frx_graph.passes.solver.dominance import undominated
from frx_graph.passes.solver.elimination import least_by_elimination
from frx_graph.passes.solver.expansion import low_by_expansion, no_dearer_than_a_start
from frx_graph.passes.solver.instance import Instance
from frx_graph.passes.solver.lowering import lower
from frx_graph.passes.solver.problem import Labelling, Problem
from frx_graph.passes.solver.splitting import restricted, split
from frx_graph.passes.solver.two_labels import least_by_cut


def solve(problem: Problem) -> Labelling:
    """The labels of least total seconds; of equally cheap ones, those that change fewest nodes.

    `exact` is False if some part of the graph has more than two labels and is too entangled for an exact answer. Even
    then the labels are never dearer than the present ones, nor than any one label wherever it is allowed.

    Raises `LabellingError` if no labels are allowed (or, in an entangled part, none were found).
    """
    lowered = lower(problem)
    answer = _least(lowered.instance)
    labels = lowered.labels(answer.choices)
    return Labelling(labels, problem.seconds(labels), answer.exact)


@dataclass(frozen=True, slots=True)
class _Answer:
    choices: tuple[int, ...]
    exact: bool


def _least(instance: Instance, *, reduced: bool = False) -> _Answer:
    choices = [0] * len(instance.variables)
    exact = True
    for part in split(instance):
        answer = _least_of_connected(part.instance, reduced=reduced)
        exact = exact and answer.exact
        for variable, possible, choice in zip(part.variables, part.choices, answer.choices, strict=True):
            choices[variable] = possible[choice]
    return _Answer(tuple(choices), exact)


def _least_of_connected(instance: Instance, *, reduced: bool) -> _Answer:
    """The first of the ways, quickest first, that is possible here."""
    if not instance.charges:
        return _Answer(tuple(variable.costs.index(min(variable.costs)) for variable in instance.variables), exact=True)
    choices = least_by_cut(instance) or least_by_elimination(instance)
    if choices is not None:
        return _Answer(choices, exact=True)
    if reduced:
        return _Answer(low_by_expansion(instance), exact=False)
    kept = undominated(instance)
    answer = _least(restricted(instance, kept), reduced=True)
    choices = tuple(some[choice] for some, choice in zip(kept, answer.choices, strict=True))
    return _Answer(choices if answer.exact else no_dearer_than_a_start(instance, choices), answer.exact)
