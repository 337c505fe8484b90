"""Replace attention that is written out by `F.scaled_dot_product_attention` (FRX012).

The products, the scale, the mask and the softmax must stand in one function, in one block, and each result must be read
once. The scale and the mask are taken over as they are written.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field

import libcst as cst
import libcst.matchers as m

from frx_graph.facts.graph_facts import GraphFacts, ValueFacts
from frx_graph.facts.layout import make_ordered_strides
from frx_graph.fix.changed_strides import explain_obstacle
from frx_graph.fix.drop_copy import remove_statement
from frx_graph.fix.fixer import Fixer, FixSubject
from frx_graph.fix.imports import name_functional
from frx_graph.fix.local_names import NameUse, list_uses
from frx_graph.fix.source_file import CannotFixError, SourceFile
from frx_graph.passes.attention_pattern import Attention, find_fusion_obstacle
from frx_graph.passes.detectors.materialised_attention import RESHAPED_INSIDE
from frx_graph.records import SourceEdit

_MATMUL = m.Call(func=m.Attribute(value=m.Name("torch"), attr=m.Name("matmul") | m.Name("bmm")))
_MATMUL_METHOD = m.Call(func=m.Attribute(attr=m.Name("matmul") | m.Name("bmm")), args=[m.Arg(keyword=None)])
_SWAPPED = ({"-2", "-1"}, {"2", "3"})
_MINUS_INFINITY = ("float('-inf')", 'float("-inf")', "-float('inf')", '-float("inf")', "-math.inf", "-torch.inf")
_RANK = 4
"""Dimensions of the operands of a fused kernel: batch, heads, length, width."""


@dataclass(slots=True)
class _Written:
    """What was read from the source so far. `gone` are statements whose results only the attention reads, `moved` the
    expressions that are evaluated later than before."""

    scale: str | None = None
    mask: str | None = None
    condition: cst.BaseExpression | None = None
    dropout: str | None = None
    gone: list[cst.BaseSmallStatement] = field(default_factory=list)
    moved: list[cst.BaseExpression] = field(default_factory=list)


def propose(subject: FixSubject) -> Sequence[SourceEdit] | None:
    """Return the call in place of the second product, and the removal of the statements before it."""
    nodes = set(subject.finding.nodes)
    found = [one for one in subject.analysis.replaceable_attentions if one.softmax.node in nodes]
    if not found:
        raise CannotFixError("a fused kernel would not run it here")
    first = found[0]
    if obstacle := find_fusion_obstacle(first):
        raise CannotFixError(obstacle)
    if any(_describe_form(one) != _describe_form(first) for one in found):
        raise CannotFixError("the line makes attentions of several forms")
    if first.dropout:
        raise CannotFixError("its dropout would draw other random numbers")
    facts = subject.analysis.facts
    for one in found:
        _check_mask(facts, one)
        result, queries = _find_result(facts, one), _find_query(facts, one)
        if len(result.shape) != _RANK or len(queries.shape) != _RANK:
            raise CannotFixError("it has other dimensions than batch, heads, length and width")
        # ATen's `_flash_attention_cpu` stores its result in the order of the queries.
        strides = make_ordered_strides(result.shape, queries.order)
        if obstacle := explain_obstacle(facts, result.name, strides):
            raise CannotFixError(obstacle)
    source = subject.source
    function = source.find_function(subject.finding.site)
    softmax = _find_softmax(source, function, subject.finding.site.line)
    written = _Written()
    second, values = _find_second_product(source, function, softmax, written)
    scores = _resolve(source, function, _get_scores(softmax), written)
    query, key = _read_scores(source, function, scores, written)
    _check_form(first, written)
    _check_unchanged(source, function, written, source.spans[second][0])
    arguments = [query, key, values]
    if written.condition is not None and first.causal and _is_top_left(source, function, written.condition):
        arguments.append("is_causal=True")
    elif written.mask is not None:
        arguments.append(f"attn_mask={written.mask}")
    if written.dropout is not None:
        arguments.append(f"dropout_p={written.dropout}")
    arguments.append(f"scale={written.scale or '1.0'}")
    call = f"{name_functional(source)}.scaled_dot_product_attention({', '.join(arguments)})"
    return [source.replace_outer(second, call), *(remove_statement(source, one) for one in written.gone)]


def _describe_form(attention: Attention) -> tuple[object, ...]:
    return attention.scale, attention.causal, len(attention.masks), len(attention.biases), attention.dropout


def _find_result(facts: GraphFacts, attention: Attention) -> ValueFacts:
    """Return what the second product makes, in the dimensions that the program sees: batch, heads, queries, width."""
    value = facts.values[attention.second.outputs[0]]
    while len(value.shape) < _RANK:
        inside = [user for user in facts.get_users(value.name) if user.operator in RESHAPED_INSIDE]
        if len(inside) != 1 or inside[0].site.location != attention.second.site.location:
            raise CannotFixError("it has no dimension of heads, so no fused kernel takes it")
        value = facts.values[inside[0].outputs[0]]
    return value


def _find_query(facts: GraphFacts, attention: Attention) -> ValueFacts:
    """Return the queries as the program passes them to the first product, which flattens them."""
    value = attention.query
    while len(value.shape) < _RANK:
        producer = facts.get_producer(value.name)
        if producer is None or producer.site.location != attention.first.site.location or not producer.inputs:
            raise CannotFixError("its queries have no dimension of heads, so no fused kernel takes them")
        value = facts.values[producer.inputs[0]]
    return value


def _check_mask(facts: GraphFacts, attention: Attention) -> None:
    """Raise `CannotFixError` for a mask that the scores take, and `scaled_dot_product_attention` does not."""
    for name in (*attention.biases, *(mask.condition for mask in attention.masks)):
        mask = facts.values.get(name)
        if mask is None or len(mask.shape) < 2:
            raise CannotFixError("its mask has fewer than two dimensions")
        if name in attention.biases and mask.dtype is not attention.query.dtype:
            raise CannotFixError("its mask is of another dtype than its queries")


def _check_form(attention: Attention, written: _Written) -> None:
    """Raise `CannotFixError` if the graph has computed something that was not found in the source, or the reverse."""
    masks = len(attention.masks) + len(attention.biases)
    if masks > 1 or (masks == 1) is not (written.mask is not None):
        raise CannotFixError("its masks are not written between the product and the softmax")
    if attention.scale_on_query and written.scale is None:
        return
    if (attention.scale is None) is not (written.scale is None):
        raise CannotFixError("its scale is not written between the product and the softmax")


def _check_unchanged(source: SourceFile, function: cst.FunctionDef, written: _Written, end: int) -> None:
    """Raise `CannotFixError` if a name in a moved expression gets another value before byte `end`, where it is read."""
    for node in written.moved:
        for name in {one.value for one in m.findall(node, m.Name()) if isinstance(one, cst.Name)}:
            for use in list_uses(source, function, name):
                if (use.assigns or use.writes) and source.spans[node][1] < source.spans[use.node][0] < end:
                    raise CannotFixError(f"`{name}` changes between the scores and the product with the values")


def _find_softmax(source: SourceFile, function: cst.FunctionDef, line: int) -> cst.Call:
    calls = [call for call in source.list_calls(function, line) if _is_softmax(source, call)]
    if len(calls) != 1:
        raise CannotFixError("the line does not have one call of `softmax`")
    (call,) = calls
    if any(argument.keyword is not None and argument.keyword.value == "dtype" for argument in call.args):
        raise CannotFixError("its softmax computes in another dtype")
    return call


def _is_softmax(source: SourceFile, call: cst.Call) -> bool:
    """Return True for `softmax`, as function or method, and for a module of `self` that is an `nn.Softmax`."""
    name = _get_called_name(call)
    if name == "softmax" and not m.matches(call.func, m.Attribute(value=m.Name("self"))):
        return True
    own = m.matches(call.func, m.Attribute(value=m.Name("self")))
    return own and list_made_kinds(source, name) == {"Softmax"}


def _get_called_name(call: cst.Call) -> str:
    if isinstance(call.func, cst.Attribute):
        return call.func.attr.value
    return call.func.value if isinstance(call.func, cst.Name) else ""


def _is_function(call: cst.Call) -> bool:
    """Return True for `F.softmax(x, ...)`, False for `x.softmax(...)`."""
    if not isinstance(call.func, cst.Attribute):
        return True
    owner = call.func.value
    names = {"torch", "F", "functional", "self"}
    return (isinstance(owner, cst.Name) and owner.value in names) or (
        isinstance(owner, cst.Attribute) and owner.attr.value == "functional"
    )


def _get_scores(softmax: cst.Call) -> cst.BaseExpression:
    if not _is_function(softmax):
        assert isinstance(softmax.func, cst.Attribute)
        return softmax.func.value
    if not softmax.args or softmax.args[0].keyword is not None:
        raise CannotFixError("the scores are not the first argument of softmax")
    return softmax.args[0].value


def _resolve(
    source: SourceFile, function: cst.FunctionDef, node: cst.BaseExpression, written: _Written
) -> cst.BaseExpression:
    """Return the expression that a name stands for, if it is assigned in the same block and read once."""
    if not isinstance(node, cst.Name):
        return node
    before = source.spans[source.get_statement(node)][0]
    uses = sorted(list_uses(source, function, node.value), key=lambda use: source.spans[use.node][0])
    earlier = [use for use in uses if use.assigns and source.spans[use.node][0] < before]
    if not earlier:
        return node
    target = source.parents[earlier[-1].node]
    statement = source.parents.get(target)
    if not isinstance(target, cst.AssignTarget) or not isinstance(statement, cst.Assign):
        raise CannotFixError(f"`{node.value}` is not assigned by itself")
    if source.parents[source.parents[statement]] is not source.parents[source.get_statement(node)]:
        raise CannotFixError(f"`{node.value}` is made in another branch or loop")
    later = [use for use in uses if source.spans[use.node][0] >= source.spans[statement][1]]
    until = next((use for use in later if use.assigns), None)
    end = len(source.script.data) if until is None else source.spans[source.get_statement(until.node)][1]
    readers = [use for use in later if not use.assigns and source.spans[use.node][0] < end]
    if len(readers) != 1 or readers[0].node is not node or any(use.writes for use in readers):
        raise CannotFixError(f"something else reads `{node.value}`, too")
    written.gone.append(statement)
    return statement.value


def _find_second_product(
    source: SourceFile, function: cst.FunctionDef, softmax: cst.Call, written: _Written
) -> tuple[cst.BaseExpression, str]:
    """Return the product with the values, and the values as source."""
    node: cst.BaseExpression = softmax
    while True:
        above = source.parents[node]
        if isinstance(above, cst.Assign):
            node = _follow_name(source, function, above, written)
            continue
        if isinstance(above, cst.BinaryOperation) and isinstance(above.operator, cst.MatrixMultiply):
            if above.left is not node:
                raise CannotFixError("the weights are the right side of the product")
            return above, source.get_text(above.right)
        if isinstance(above, cst.Attribute) and isinstance(call := source.parents[above], cst.Call):
            if m.matches(call, _MATMUL_METHOD):
                return call, source.get_text(call.args[0].value)
            raise CannotFixError(f"`.{above.attr.value}` follows the softmax")
        outer = source.parents.get(above) if isinstance(above, cst.Arg) else None
        if not isinstance(outer, cst.Call):
            raise CannotFixError("what follows the softmax is not a product with the values")
        if m.matches(outer, _MATMUL) and len(outer.args) == 2 and outer.args[0] is above:
            return outer, source.get_text(outer.args[1].value)
        if _get_called_name(outer) == "einsum" and len(outer.args) == 3 and outer.args[1] is above:
            _check_second_einsum(*_read_einsum(source, outer))
            return outer, source.get_text(outer.args[2].value)
        if outer.args[0] is not above or written.dropout is not None:
            raise CannotFixError("what follows the softmax is not a product with the values")
        written.dropout = _read_dropout(source, outer)
        node = outer


def _read_dropout(source: SourceFile, call: cst.Call) -> str:
    """Return the probability with which a call drops weights, as source: training must go on as before."""
    if m.matches(call.func, m.Attribute(value=m.Name("self"))) and len(call.args) == 1:
        assert isinstance(call.func, cst.Attribute)
        if list_made_kinds(source, call.func.attr.value) == {"Dropout"}:
            module = source.get_text(call.func)
            return f"{module}.p if {module}.training else 0.0"
    given = {one.keyword.value: source.get_text(one.value) for one in call.args[1:] if one.keyword is not None}
    if _get_called_name(call) == "dropout" and _is_function(call) and given.keys() == {"p", "training"}:
        return f"{given['p']} if {given['training']} else 0.0"
    raise CannotFixError(f"`{source.get_text(call.func)}` follows the softmax, and is not known to be dropout")


def list_made_kinds(source: SourceFile, name: str) -> set[str]:
    """Return what `self.name` is made by, wherever the file assigns it: `Dropout` for `nn.Dropout(0.1)`."""
    made = m.AssignTarget(target=m.Attribute(value=m.Name("self"), attr=m.Name(name)))
    assigns = (one for one in m.findall(source.module, m.Assign(targets=[made])) if isinstance(one, cst.Assign))
    return {_get_called_name(one.value) if isinstance(one.value, cst.Call) else "" for one in assigns}


def _is_top_left(source: SourceFile, function: cst.FunctionDef, condition: cst.BaseExpression) -> bool:
    """Return True for a mask of `triu(1)`, which hides what `is_causal` hides for queries and keys of any number. One
    whose diagonal depends on the sizes need not."""
    if isinstance(condition, cst.Name):
        assigns = [use.node for use in list_uses(source, function, condition.value) if use.assigns]
        statement = source.parents.get(source.parents[assigns[0]]) if len(assigns) == 1 else None
        condition = statement.value if isinstance(statement, cst.Assign) else condition
    if isinstance(condition, cst.Call) and _get_called_name(condition) == "bool" and not condition.args:
        assert isinstance(condition.func, cst.Attribute)
        condition = condition.func.value
    if not isinstance(condition, cst.Call) or _get_called_name(condition) != "triu":
        return False
    diagonal = condition.args[1:] if _is_function(condition) else condition.args
    return [source.get_text(argument.value) for argument in diagonal] == ["1"]


def _follow_name(
    source: SourceFile, function: cst.FunctionDef, statement: cst.Assign, written: _Written
) -> cst.BaseExpression:
    """Return the only place that reads what a statement assigns."""
    target = statement.targets[0].target
    if len(statement.targets) != 1 or not isinstance(target, cst.Name):
        raise CannotFixError("the weights are not assigned to one name")
    end = source.spans[statement][1]
    uses = sorted(list_uses(source, function, target.value), key=lambda use: source.spans[use.node][0])
    readers: list[NameUse] = []
    for use in uses:
        at = source.spans[use.node][0]
        if at < end:
            continue
        if use.assigns and source.spans[source.get_statement(use.node)][0] == at and readers:
            break
        if not use.assigns:
            readers.append(use)
        elif not _reads_itself(source, use.node):
            break
    if len(readers) == 0 or readers[0].writes or readers[0].method not in ("", "matmul", "bmm"):
        raise CannotFixError(f"`{target.value}` is not read by a product")
    if len(readers) > 1 and not _is_reassigned_by(source, readers[0].node, target.value):
        raise CannotFixError(f"something else reads `{target.value}`, too")
    node = readers[0].node
    if source.parents[source.get_statement(node)] is not source.parents[source.parents[statement]]:
        raise CannotFixError(f"`{target.value}` is read in another branch or loop")
    written.gone.append(statement)
    return node


def _reads_itself(source: SourceFile, node: cst.Name) -> bool:
    return len(m.findall(source.get_statement(node), m.Name(node.value))) > 1


def _is_reassigned_by(source: SourceFile, node: cst.Name, name: str) -> bool:
    """Return True if the statement that reads a name gives it another value."""
    statement = source.get_statement(node)
    return any(
        m.matches(target, m.AssignTarget(target=m.Name(name))) for target in m.findall(statement, m.AssignTarget())
    )


def _read_scores(
    source: SourceFile, function: cst.FunctionDef, node: cst.BaseExpression, written: _Written
) -> tuple[str, str]:
    """Return queries and keys as source, and note the scale and the mask on the way."""
    while True:
        node = _resolve(source, function, node, written)
        if isinstance(node, cst.BinaryOperation):
            if isinstance(node.operator, cst.MatrixMultiply):
                return _take_operands(source, node.left, node.right, written)
            node = _read_operation(source, node, written)
        elif isinstance(node, cst.Call):
            if m.matches(node, _MATMUL) and len(node.args) == 2:
                return _take_operands(source, node.args[0].value, node.args[1].value, written)
            if m.matches(node, _MATMUL_METHOD):
                assert isinstance(node.func, cst.Attribute)
                return _take_operands(source, node.func.value, node.args[0].value, written)
            if _get_called_name(node) == "einsum" and len(node.args) == 3:
                _check_first_einsum(*_read_einsum(source, node))
                query, key = node.args[1].value, node.args[2].value
                written.moved += [query, key]
                return source.get_text(query), source.get_text(key)
            node = _read_mask(source, node, written)
        else:
            raise CannotFixError("the product of queries and keys was not found in front of the softmax")


def _read_einsum(source: SourceFile, call: cst.Call) -> tuple[str, str, str]:
    """Return the labels of two operands and of the result."""
    try:
        equation = ast.literal_eval(source.get_text(call.args[0].value))
    except (ValueError, SyntaxError) as error:
        raise CannotFixError("the equation of `einsum` does not stand in the source") from error
    sides = str(equation).replace(" ", "").split("->")
    operands = sides[0].split(",")
    if len(sides) != 2 or len(operands) != 2 or "." in sides[0]:
        raise CannotFixError("the equation of `einsum` is not one of two operands")
    return operands[0], operands[1], sides[1]


def _check_first_einsum(query: str, key: str, scores: str) -> None:
    batch = query[:-2]
    fits = key[:-2] == batch and query[-1:] == key[-1:] and scores == batch + query[-2:-1] + key[-2:-1]
    if not fits or len(set(query + key)) != len(batch) + 3:
        raise CannotFixError("the equation of `einsum` is not that of queries and keys")


def _check_second_einsum(weights: str, values: str, result: str) -> None:
    batch = weights[:-2]
    fits = values[:-2] == batch and weights[-1:] == values[-2:-1] and result == weights[:-1] + values[-1:]
    if not fits or len(set(weights + values)) != len(batch) + 3:
        raise CannotFixError("the equation of `einsum` is not that of weights and values")


def _take_operands(
    source: SourceFile, query: cst.BaseExpression, key: cst.BaseExpression, written: _Written
) -> tuple[str, str]:
    written.moved += [query, key]
    return source.get_text(query), _transpose(source, key)


def _read_operation(source: SourceFile, node: cst.BinaryOperation, written: _Written) -> cst.BaseExpression:
    text = source.get_text(node.right)
    if isinstance(node.operator, (cst.Multiply, cst.Divide)):
        if written.scale is not None:
            raise CannotFixError("the scores are scaled twice")
        if isinstance(node.operator, cst.Multiply):
            left_is_number = isinstance(node.left, (cst.Float, cst.Integer)) or m.matches(
                node.left, m.Attribute(value=m.Name("self"))
            )
            written.moved.append(node.left if left_is_number else node.right)
            written.scale = source.get_text(node.left) if left_is_number else text
            return node.right if left_is_number else node.left
        written.moved.append(node.right)
        written.scale = (
            f"1 / {text}" if isinstance(node.right, (cst.Name, cst.Call, cst.Attribute)) else f"1 / ({text})"
        )
        return node.left
    if isinstance(node.operator, cst.Add):
        if written.mask is not None:
            raise CannotFixError("the scores have several masks")
        if written.scale is not None:
            raise CannotFixError("the mask is scaled, too")
        written.moved.append(node.right)
        written.mask = text
        return node.left
    raise CannotFixError("the scores are computed in a way that the fused kernel does not know")


def _read_mask(source: SourceFile, node: cst.Call, written: _Written) -> cst.BaseExpression:
    if _get_called_name(node) != "masked_fill" or _is_function(node) or len(node.args) != 2:
        raise CannotFixError(f"`{_get_called_name(node)}` stands between the product and the softmax")
    assert isinstance(node.func, cst.Attribute)
    if written.mask is not None:
        raise CannotFixError("the scores have several masks")
    if source.get_text(node.args[1].value) not in _MINUS_INFINITY:
        raise CannotFixError("the mask does not fill with minus infinity, so rows without a key would differ")
    condition = node.args[0].value
    written.moved.append(condition)
    text = source.get_text(condition)
    if isinstance(condition, cst.Comparison) and len(condition.comparisons) == 1 and not condition.lpar:
        target = condition.comparisons[0]
        if isinstance(target.operator, cst.Equal) and source.get_text(target.comparator) == "0":
            written.mask = f"{source.get_text(condition.left)} != 0"
            return node.func.value
    if isinstance(condition, cst.UnaryOperation) and isinstance(condition.operator, cst.BitInvert):
        written.mask = source.get_text(condition.expression)
    else:
        written.condition = condition
        simple = isinstance(condition, (cst.Name, cst.Attribute, cst.Call, cst.Subscript)) or bool(condition.lpar)
        written.mask = f"~{text}" if simple else f"~({text})"
    return node.func.value


def _transpose(source: SourceFile, node: cst.BaseExpression) -> str:
    """Return the keys, of which the source has the transpose."""
    if isinstance(node, cst.Attribute) and node.attr.value == "mT":
        return source.get_text(node.value)
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == "transpose":
        swapped = [source.get_text(argument.value) for argument in node.args]
        if set(swapped) in _SWAPPED and len(swapped) == 2:
            return source.get_text(node.func.value)
    text = source.get_text(node)
    simple = isinstance(node, (cst.Name, cst.Attribute, cst.Call, cst.Subscript)) or bool(node.lpar)
    return f"{text}.transpose(-2, -1)" if simple else f"({text}).transpose(-2, -1)"


FIXER = Fixer("FRX012", "fused_attention", propose)
