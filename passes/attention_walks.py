"""Walk from a softmax back to the product that made the scores, and forward to the product with the values.

The walk back records changes to the scores: scales, biases and masks. The walk forward records dropout and other users
of the weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from frx_graph.capture.captured_graph import Phase
from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts, ValueRef
from frx_graph.facts.operator_families import LAYOUT_COPIES
from frx_graph.passes.copies.view_chain import is_view

SCORE_PRODUCTS = frozenset({"aten.bmm", "aten.mm", "aten.matmul", "aten.baddbmm"})
"""Not `MATRIX_PRODUCTS`: scores are a product of two activations; `addmm` takes a weight and a bias."""
_PASS_THROUGH = LAYOUT_COPIES | {"aten.native_dropout", "aten.dropout"}
SCALES = frozenset({"aten.mul", "aten.div", "aten.mul_", "aten.div_"})
BIASES = frozenset({"aten.add", "aten.sub", "aten.add_", "aten.sub_"})
MASKS = frozenset({"aten.masked_fill", "aten.masked_fill_", "aten.where"})
HIDDEN_FROM = -1e4
"""Largest fill value that hides a score: about the least that float16 holds; its exponential is 0 in every dtype."""
FILLED = {"aten.scalar_tensor": 0, "aten.full": 1, "aten.full_like": 1}
"""Operators that make a tensor of one number, and the position of that number."""
MAX_STEPS = 24
"""Operators followed on one side of the softmax. Published attentions need up to 10 (scale, two masks, bias, casts)."""


@dataclass(frozen=True, slots=True)
class BooleanMask:
    """The condition by which scores are hidden: where it is False if `keeps`, else where it is True."""

    condition: str
    keeps: bool


@dataclass
class ScoresPath:
    """Operators between the first product and the softmax, the last in the program first, and their effects."""

    ops: list[OpFacts]
    scale: float | None = None
    biases: tuple[str, ...] = ()
    masks: tuple[BooleanMask, ...] = ()
    unsupported: tuple[str, ...] = ()


@dataclass
class WeightsPath:
    """Operators between the softmax and the second product."""

    ops: list[OpFacts]
    product: OpFacts | None = None
    operand: str = ""
    dropout: float = 0.0
    elsewhere: tuple[str, ...] = ()


def walk_back(facts: GraphFacts, scores: ValueFacts) -> ScoresPath | None:
    """Walk from the softmax's operand to the product that made it; operators in execution order, the product first."""
    met = ScoresPath([])
    value: str | None = scores.name
    for _ in range(MAX_STEPS):
        op = facts.get_producer(value) if value is not None else None
        if op is None:
            return None
        if op.operator in SCORE_PRODUCTS:
            if facts.values[op.outputs[0]].numel != scores.numel:
                return None
            if op.operator == "aten.baddbmm":
                beta = op.kwargs.get("beta", 1)
                if beta != 0:
                    _note_bias(op.inputs[0], beta, met)
                met.scale = _multiply_scale(met.scale, op.kwargs.get("alpha", 1))
            met.ops.insert(0, op)
            return met
        if not is_view(op):
            # In-place operators do not all carry torch's pointwise tag.
            if not (op.pointwise or op.operator in _PASS_THROUGH | SCALES | BIASES | MASKS):
                return None
            met.ops.insert(0, op)
            _note(facts, op, met)
        value = _find_scores_operand(facts, op)
    return None


def _find_scores_operand(facts: GraphFacts, op: OpFacts) -> str | None:
    """Return the operand with the scores: of the result's size, and preferably made from a product."""
    numel = facts.values[op.outputs[0]].numel
    full = [v for v in op.inputs if facts.values[v].numel == numel and facts.values[v].dtype.is_floating_point]
    if len(full) < 2:
        return full[0] if full else None
    return next((v for v in full if _reaches_product(facts, v)), full[0])


def _reaches_product(facts: GraphFacts, value: str) -> bool:
    for _ in range(MAX_STEPS):
        op = facts.get_producer(value)
        if op is None or op.operator in FILLED:  # `full_like` takes the size of the scores, and no more
            return False
        if op.operator in SCORE_PRODUCTS:
            return True
        if not (is_view(op) or op.pointwise or op.operator in _PASS_THROUGH) or not op.inputs:
            return False
        value = op.inputs[0]
    return False


def find_factor(op: OpFacts) -> float | None:
    """Return the number, other than 0, that the operator multiplies its operand with; None if there is none."""
    number = next((a for a in op.args[1:] if isinstance(a, (int, float)) and not isinstance(a, bool)), None)
    if op.operator not in SCALES or not number:
        return None
    return 1 / number if "div" in op.operator else float(number)


def _note(facts: GraphFacts, op: OpFacts, met: ScoresPath) -> None:
    """Note the effect of a pointwise operator between product and softmax."""
    others = [a for a in op.args[1:] if isinstance(a, ValueRef)]
    if op.operator in _PASS_THROUGH:
        return
    if (factor := find_factor(op)) is not None:
        met.scale = _multiply_scale(met.scale, factor)
    elif op.operator in SCALES and others and all(facts.values[o.name].numel == 1 for o in others):
        met.unsupported += ("a scale that is a tensor",)
    elif op.operator in BIASES and op.inputs:
        operand = _find_scores_operand(facts, op)
        bias = next((name for name in op.inputs if name != operand), None)
        if bias is None and not others:
            return  # a number added to every score changes no softmax
        alpha = op.kwargs.get("alpha", 1)
        _note_bias(bias, -1 if "sub" in op.operator else alpha, met)
    elif op.operator in MASKS:
        _note_mask(facts, op, met)
    else:
        met.unsupported += (op.operator.removeprefix("aten."),)


def _note_bias(bias: str | None, factor: object, met: ScoresPath) -> None:
    """Note that `bias` times `factor` is added; what was noted before comes after it in the program."""
    if bias is None:
        met.unsupported += ("a sum of the scores with themselves",)
        return
    if factor != 1:
        met.unsupported += ("a subtracted or scaled bias",)
    elif met.scale is not None:
        met.unsupported += ("a scale after the bias",)
    met.biases += (bias,)


def _note_mask(facts: GraphFacts, op: OpFacts, met: ScoresPath) -> None:
    """Note a mask: `where(keep, scores, fill)`, `where(hide, fill, scores)` or `masked_fill(scores, hide, fill)`."""
    where = op.operator == "aten.where"
    condition, *branches = op.args if where else (op.args[1], op.args[0], *op.args[2:])
    operand = _find_scores_operand(facts, op)
    keeps = where and isinstance(branches[0], ValueRef) and branches[0].name == operand
    fill = find_constant(facts, branches[1] if keeps or not where else branches[0])
    if fill is None or fill > HIDDEN_FROM:
        met.unsupported += (f"a mask that fills in {'an unknown value' if fill is None else fill}",)
    elif met.scale is not None and met.scale < 0:
        met.unsupported += ("a negative scale after the mask",)
    if isinstance(condition, ValueRef):
        met.masks += (BooleanMask(condition.name, keeps),)


def find_constant(facts: GraphFacts, argument: object) -> float | None:
    """Return the number that `argument` is, or that a tensor is filled with; None if unknown."""
    if isinstance(argument, ValueRef):
        *_, origin = trace_sources(facts, argument.name)
        op = facts.get_producer(origin)
        if op is None or op.operator not in FILLED or FILLED[op.operator] in op.symbolic:
            return None
        argument = op.args[FILLED[op.operator]]
    return float(argument) if isinstance(argument, (int, float)) else None


def walk_forward(facts: GraphFacts, softmax: OpFacts) -> WeightsPath:
    """Walk from the softmax's result to the product that uses it. Uses in the backward do not count."""
    met = WeightsPath([])
    value = softmax.outputs[0]
    for _ in range(MAX_STEPS):
        if value in facts.outputs:
            met.elsewhere += ("the program's output",)
        users = [u for u in facts.get_users(value) if u.phase is Phase.FORWARD and not _is_dead_end(facts, u)]
        going_on = [
            u for u in users if is_view(u) or u.operator in _PASS_THROUGH or _get_dropout_probability(facts, u, value)
        ]
        products = [u for u in users if u.operator in SCORE_PRODUCTS]
        if products:
            met.product, met.operand = products[0], value
            met.elsewhere += tuple(u.node for u in users if u is not products[0])
            return met
        if not going_on:
            return met
        chosen = going_on[0]
        met.elsewhere += tuple(u.node for u in users if u is not chosen)
        if not is_view(chosen):
            met.ops.append(chosen)
            met.dropout = max(met.dropout, _get_dropout_probability(facts, chosen, value))
        value = chosen.outputs[0]
    return met


def _is_dead_end(facts: GraphFacts, op: OpFacts) -> bool:
    """Return True for a view kept for the backward, or an operator that only reads the size, such as `empty_like`."""
    if op.operator in ("aten.empty_like", "aten.rand_like", "aten.ones_like", "aten.zeros_like"):
        return True
    if not is_view(op) or any(name in facts.outputs for name in op.outputs):
        return False
    return all(
        user.phase is Phase.BACKWARD or _is_dead_end(facts, user)
        for name in op.outputs
        for user in facts.get_users(name)
    )


def _get_dropout_probability(facts: GraphFacts, op: OpFacts, value: str) -> float:
    """Return the probability of a dropout, which on the CPU is a product with scaled Bernoulli noise; else 0."""
    if op.operator in ("aten.native_dropout", "aten.dropout"):
        return float(op.args[1]) if len(op.args) > 1 and isinstance(op.args[1], (int, float)) else 0.0
    if op.operator != "aten.mul":
        return 0.0
    for name in set(op.inputs) - {value}:
        for writer in facts.values_by_storage.get(facts.values[name].storage, ()):
            made = facts.get_producer(writer.name)
            if made is not None and made.operator == "aten.bernoulli_":
                kept = made.args[1] if len(made.args) > 1 else 0.5  # the schema's default, which the graph leaves out
                return 1.0 - kept if isinstance(kept, float) else 0.0
    return 0.0


def trace_sources(facts: GraphFacts, value: str) -> Iterator[str]:
    """Yield `value` and its sources through views, copies and casts, up to an operator that computes."""
    for _ in range(MAX_STEPS):
        yield value
        op = facts.get_producer(value)
        if op is None or not (is_view(op) or op.operator in LAYOUT_COPIES):
            return
        value = op.inputs[0]


def _multiply_scale(scale: float | None, factor: object) -> float | None:
    if not isinstance(factor, (int, float)) or factor == 1:
        return scale
    return float(factor) if scale is None else scale * factor
