"""Find the cheapest labels, exactly if that is feasible."""

from __future__ import annotations

from frx_graph.passes.solver.elimination import solve_by_elimination
from frx_graph.passes.solver.expansion import solve_by_expansion
from frx_graph.passes.solver.instance import Instance
from frx_graph.passes.solver.lowering import lower
from frx_graph.passes.solver.problem import Labelling, Problem
from frx_graph.passes.solver.splitting import split_instance
from frx_graph.passes.solver.two_labels import solve_by_cut


def solve(problem: Problem) -> Labelling:
    """Return the labels of least total seconds; of equally cheap ones, those that change the fewest nodes.

    `exact` is False if some part of the graph has more than two labels and is too entangled for an exact answer. Even
    then the labels are never dearer than the present ones, nor than any one label wherever it is allowed.

    Raises `LabellingError` if no labels are allowed (or, in an entangled part, none were found).
    """
    instance = lower(problem)
    choices = [0] * len(instance.variables)
    exact = True
    for part in split_instance(instance):
        least = _solve_connected(part.instance)
        exact = exact and least is not None
        found = solve_by_expansion(part.instance) if least is None else least
        for variable, possible, choice in zip(part.variables, part.choices, found, strict=True):
            choices[variable] = possible[choice]
    chosen = [variable.labels[choice] for variable, choice in zip(instance.variables, choices, strict=True)]
    labels = tuple(chosen[: len(problem.nodes)])
    return Labelling(labels, problem.sum_seconds(labels), exact)


def _solve_connected(instance: Instance) -> tuple[int, ...] | None:
    """Return the choices of least ticks by the quickest way that is possible; None if none is."""
    if not instance.charges:
        return tuple(variable.costs.index(min(variable.costs)) for variable in instance.variables)
    return solve_by_cut(instance) or solve_by_elimination(instance)
