"""The function of the user that builds the model: `return model, (images,)`."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst
import libcst.matchers as m

from frx_graph.fix.source_file import CannotFixError, SourceFile
from frx_graph.records import SourceEdit

_RETURN = m.Return(value=m.Tuple(elements=[m.Element(), m.Element(value=m.Tuple()), m.ZeroOrMore(m.Element())]))


def convert_built_model(
    source: SourceFile, function: cst.FunctionDef, memory_format: str, images: int
) -> Sequence[SourceEdit]:
    """Return the edits that convert the model and so many images where they are returned. Raises `CannotFixError` if
    there are several such places, or other arguments."""
    returned = m.findall(function.body, m.Return())
    if len(returned) != 1 or not m.matches(returned[0], _RETURN):
        raise CannotFixError("the function that builds the model does not end with `return model, (images,)`")
    (statement,) = returned
    assert isinstance(statement, cst.Return)
    assert isinstance(statement.value, cst.Tuple)
    model, arguments = (element.value for element in statement.value.elements[:2])
    assert isinstance(arguments, cst.Tuple)
    values = [element.value for element in arguments.elements if isinstance(element, cst.Element)]
    if len(values) != images or len(arguments.elements) != images:
        raise CannotFixError("the function that builds the model also returns other arguments than images")
    if not all(isinstance(value, (cst.Name, cst.Attribute, cst.Call)) for value in (model, *values)):
        raise CannotFixError("what the function returns is not named or made by a call")
    converted = f".to(memory_format={memory_format})"
    return [source.replace_outer(value, f"{source.get_operand(value)}{converted}") for value in (model, *values)]
