"""Threads that are looked at together are what each of them is alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from frx_graph.evidence.cuda.concrete import (
    OPPOSITE,
    LoopValues,
    SymbolChoice,
    SymbolOperation,
    TestGroup,
    Threads,
    Truth,
    Worth,
    apply_and,
    apply_or,
    expand_threads,
)
from frx_graph.evidence.cuda.concrete import (
    Test as Compared,
)
from frx_graph.evidence.cuda.polynomial import Polynomial

COUNT = 5
PLACES: dict[str, Worth] = {"threadIdx.x": tuple(range(COUNT)), "threadIdx.y": 2, "gone": (0, None, 3, None, 1)}
LEAVES = (*PLACES, "blockDim.x", "unknown#1", "loop:7", "loop:7:i")
MADE = tuple(f"made{number}" for number in range(3))

polynomials = st.dictionaries(
    st.lists(st.sampled_from([*LEAVES, *MADE]), max_size=2).map(lambda names: tuple(sorted(names))),
    st.sampled_from([-40, -1, 1, 2, 1 << 61]),
    max_size=3,
).map(Polynomial)
tests = st.recursive(
    st.builds(Compared, st.sampled_from([*OPPOSITE]), polynomials),
    lambda inner: st.builds(TestGroup, st.booleans(), st.lists(inner, min_size=1, max_size=3).map(tuple)),
    max_leaves=4,
)
symbols = st.fixed_dictionaries(
    {
        name: st.one_of(
            st.builds(
                SymbolOperation, st.sampled_from(["/", "&", "|", "^", "<<", ">>", "?"]), polynomials, polynomials
            ),
            st.builds(SymbolChoice, tests, polynomials, polynomials),
        )
        for name in MADE
    }
)


def of_launch(symbol: str) -> int | None:
    return 64 if symbol == "blockDim.x" else None


@given(polynomials, tests, symbols, polynomials, st.none() | polynomials, st.booleans())
def test_together_as_alone(
    value: Polynomial,
    asked: Compared | TestGroup,
    made: dict[str, SymbolOperation | SymbolChoice],
    first: Polynomial,
    then: Polynomial | None,
    second: bool,
) -> None:
    late = frozenset({"loop:7"} if second else ())
    turns = {"loop:7:i": LoopValues(first, then)}
    together = Threads(PLACES, made, turns, late, of_launch)
    worth, holds = expand_threads(together.evaluate(value), COUNT), expand_threads(together.check(asked), COUNT)
    for thread in range(COUNT):
        place = {name: expand_threads(worths, COUNT)[thread] for name, worths in PLACES.items()}
        alone = Threads(place, made, turns, late, of_launch)
        assert (alone.evaluate(value), alone.check(asked)) == (worth[thread], holds[thread])


truths = st.one_of(st.none(), st.booleans(), st.tuples(*[st.none() | st.booleans()] * COUNT))


@given(truths, truths)
def test_unknown_operand_does_not_decide(one: Truth, other: Truth) -> None:
    for together, decides, found in ((apply_and, False, apply_and(one, other)), (apply_or, True, apply_or(one, other))):
        assert found == together(other, one)
        for a, b, result in zip(
            expand_threads(one, COUNT), expand_threads(other, COUNT), expand_threads(found, COUNT), strict=True
        ):
            if decides in (a, b):
                assert result is decides
            else:
                assert result is (None if None in (a, b) else not decides)
