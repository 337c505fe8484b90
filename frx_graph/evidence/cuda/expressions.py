"""Which evaluator reads which kind of expression; of all others the parts are evaluated, and no more is known."""

from __future__ import annotations

from collections.abc import Mapping

from frx_graph.evidence.cuda import call_expressions, operators, places
from frx_graph.evidence.cuda.state import Evaluator

EVALUATORS: Mapping[str, Evaluator] = {
    "identifier": operators.name,
    "qualified_identifier": operators.qualified_name,
    "number_literal": operators.literal,
    "true": operators.truth,
    "false": operators.truth,
    "sizeof_expression": operators.size,
    "binary_expression": operators.binary,
    "unary_expression": operators.unary,
    "parenthesized_expression": operators.parenthesized,
    "cast_expression": operators.converted,
    "comma_expression": operators.comma,
    "conditional_expression": operators.choice,
    "lambda_expression": operators.function,
    "assignment_expression": operators.assignment,
    "update_expression": operators.update,
    "subscript_expression": places.subscript,
    "field_expression": places.field,
    "pointer_expression": places.dereference,
    "call_expression": call_expressions.call,
    "gnu_asm_expression": call_expressions.assembly,
}
