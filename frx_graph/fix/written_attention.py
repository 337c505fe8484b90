"""Read attention that a function writes out: products, scale, mask, dropout, and the statements that would go."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import libcst as cst
import libcst.matchers as m

from frx_graph.fix.calls import get_called_name, is_own_module, is_torch_function, list_made_kinds
from frx_graph.fix.local_names import find_assigned_name, is_in_loop, list_occurrences
from frx_graph.fix.source_file import CannotFixError, SourceFile

_PLAIN = m.Arg(keyword=None, star="")
_MATMUL = m.Call(func=m.Attribute(value=m.Name("torch"), attr=m.Name("matmul") | m.Name("bmm")), args=[_PLAIN, _PLAIN])
_MATMUL_METHOD = m.Call(func=m.Attribute(attr=m.Name("matmul") | m.Name("bmm")), args=[_PLAIN])
_EINSUM = m.Call(func=m.Attribute(attr=m.Name("einsum")) | m.Name("einsum"), args=[_PLAIN, _PLAIN, _PLAIN])
_SWAPPED = ({"-2", "-1"}, {"2", "3"})
_MINUS_INFINITY = ("float('-inf')", 'float("-inf")', "-float('inf')", '-float("inf")', "-math.inf", "-torch.inf")
_FOLLOWING = frozenset({"transpose", "permute", "reshape", "flatten", "swapaxes", "contiguous"})
"""Methods of the result that take any strides."""


@dataclass(slots=True)
class WrittenAttention:
    """The parts that were read from the source. `gone` are statements whose results only the attention reads."""

    scale: cst.BaseExpression | None = None
    scale_text: str = "1.0"
    mask: cst.BaseExpression | None = None
    mask_text: str = ""
    hides: bool = False
    """The mask is True where a score is hidden."""
    dropout: str = ""
    gone: list[cst.BaseSmallStatement] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class AttentionReader:
    """Reads the attention of one function of a file."""

    source: SourceFile
    function: cst.FunctionDef

    def find_softmax(self, line: int) -> cst.Call:
        """Return the softmax on a line."""
        calls = [call for call in self.source.list_calls(self.function, line) if self._is_softmax(call)]
        if len(calls) != 1:
            raise CannotFixError("the line does not have one call of `softmax`")
        (call,) = calls
        if any(argument.keyword is not None and argument.keyword.value == "dtype" for argument in call.args):
            raise CannotFixError("its softmax computes in another dtype")
        if is_in_loop(self.source, call, self.function):
            raise CannotFixError("it stands in a loop, or in a function within")
        return call

    def _is_softmax(self, call: cst.Call) -> bool:
        """Return True for `softmax`, as function or method, and for a module of `self` that is an `nn.Softmax`."""
        name = get_called_name(call)
        if not is_own_module(call):
            return name == "softmax"
        return list_made_kinds(self.source, name) == {"Softmax"}

    def get_scores(self, softmax: cst.Call) -> cst.BaseExpression:
        """Return what the softmax is of."""
        if not is_torch_function(softmax) and not is_own_module(softmax) and isinstance(softmax.func, cst.Attribute):
            return softmax.func.value
        if not softmax.args or softmax.args[0].keyword is not None or softmax.args[0].star:
            raise CannotFixError("the scores are not the first argument of softmax")
        return softmax.args[0].value

    def resolve(self, node: cst.BaseExpression, written: WrittenAttention) -> cst.BaseExpression:
        """Return the expression that a name stands for, if the statement before the reading one assigns it."""
        if not isinstance(node, cst.Name):
            return node
        line = self.source.get_statement(node)
        before = self.source.get_statement_before(line)
        small = before.body[0] if before is not None and len(before.body) == 1 else None
        if not isinstance(small, cst.Assign) or find_assigned_name(self.source, small.value) != node.value:
            return node
        written.gone.append(small)
        return small.value

    def find_second_product(self, softmax: cst.Call, written: WrittenAttention) -> tuple[cst.BaseExpression, str]:
        """Return the product with the values, and the values as source."""
        node: cst.BaseExpression = softmax
        while True:
            above = self.source.parents[node]
            outer = self.source.parents.get(above)
            if isinstance(above, cst.Assign):
                node = self._follow_name(above, written)
            elif isinstance(above, cst.BinaryOperation) and isinstance(above.operator, cst.MatrixMultiply):
                if above.left is not node:
                    raise CannotFixError("the weights are the right side of the product")
                return above, self.source.get_text(above.right)
            elif isinstance(above, cst.Attribute) and isinstance(outer, cst.Call):
                if not m.matches(outer, _MATMUL_METHOD):
                    raise CannotFixError(f"`.{above.attr.value}` follows the softmax")
                return outer, self.source.get_text(outer.args[0].value)
            elif not isinstance(above, cst.Arg) or not isinstance(outer, cst.Call):
                raise CannotFixError("what follows the softmax is not a product with the values")
            elif m.matches(outer, _MATMUL) and outer.args[0] is above:
                return outer, self.source.get_text(outer.args[1].value)
            elif m.matches(outer, _EINSUM) and outer.args[1] is above:
                _check_second_einsum(*self._read_einsum(outer))
                return outer, self.source.get_text(outer.args[2].value)
            elif outer.args[0] is not above or written.dropout:
                raise CannotFixError("what follows the softmax is not a product with the values")
            else:
                written.dropout = self._read_dropout(outer)
                node = outer

    def _follow_name(self, statement: cst.Assign, written: WrittenAttention) -> cst.BaseExpression:
        """Return where the next statement reads what a statement assigns."""
        name = find_assigned_name(self.source, statement.value)
        if name is None:
            raise CannotFixError("the weights are not assigned to one name")
        following = self.source.get_next_statement(statement)
        reads = [
            node
            for node in list_occurrences(self.source, self.function, name)
            if self.source.is_inside(node, following) and self.source.is_read(node)
        ]
        if len(reads) != 1:
            raise CannotFixError(f"the next statement does not read `{name}` once")
        written.gone.append(statement)
        return reads[0]

    def _read_dropout(self, call: cst.Call) -> str:
        """Return the probability with which a call drops weights, as source: training must go on as before."""
        text = self.source.get_text
        own = is_own_module(call) and len(call.args) == 1
        if own and list_made_kinds(self.source, get_called_name(call)) == {"Dropout"}:
            return f"{text(call.func)}.p if {text(call.func)}.training else 0.0"
        given = {one.keyword.value: one.value for one in call.args[1:] if one.keyword is not None}
        if get_called_name(call) == "dropout" and is_torch_function(call) and given.keys() == {"p", "training"}:
            return f"{self.source.get_operand(given['p'])} if {self.source.get_operand(given['training'])} else 0.0"
        raise CannotFixError(f"`{text(call.func)}` follows the softmax, and is not known to be dropout")

    def read_scores(self, node: cst.BaseExpression, written: WrittenAttention) -> tuple[str, str]:
        """Return queries and keys as source, and note the scale and the mask on the way."""
        text = self.source.get_text
        while True:
            node = self.resolve(node, written)
            if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.MatrixMultiply):
                return text(node.left), self._transpose(node.right)
            if isinstance(node, cst.BinaryOperation):
                node = self._read_scale(node, written)
            elif m.matches(node, _MATMUL) and isinstance(node, cst.Call):
                return text(node.args[0].value), self._transpose(node.args[1].value)
            elif m.matches(node, _MATMUL_METHOD) and isinstance(node, cst.Call):
                assert isinstance(node.func, cst.Attribute)
                return text(node.func.value), self._transpose(node.args[0].value)
            elif m.matches(node, _EINSUM) and isinstance(node, cst.Call):
                _check_first_einsum(*self._read_einsum(node))
                return text(node.args[1].value), text(node.args[2].value)
            elif isinstance(node, cst.Call):
                node = self._read_mask(node, written)
            else:
                raise CannotFixError("the product of queries and keys is not right in front of the softmax")

    def _read_scale(self, node: cst.BinaryOperation, written: WrittenAttention) -> cst.BaseExpression:
        if not isinstance(node.operator, (cst.Multiply, cst.Divide)):
            raise CannotFixError("the scores are computed in a way that the fused kernel does not know, or is added to")
        if written.scale is not None:
            raise CannotFixError("the scores are scaled twice")
        scores, scale = node.left, node.right
        own = m.Float() | m.Integer() | m.Attribute(value=m.Name("self"))
        if isinstance(node.operator, cst.Multiply) and m.matches(scores, own):
            scores, scale = scale, scores
        written.scale, written.scale_text = scale, self.source.get_text(scale)
        if isinstance(node.operator, cst.Divide):
            written.scale_text = f"1 / {self.source.get_operand(scale)}"
        return scores

    def _read_mask(self, node: cst.Call, written: WrittenAttention) -> cst.BaseExpression:
        if get_called_name(node) != "masked_fill" or is_torch_function(node) or len(node.args) != 2:
            raise CannotFixError(f"`{get_called_name(node)}` stands between the product and the softmax")
        assert isinstance(node.func, cst.Attribute)
        if written.mask is not None:
            raise CannotFixError("the scores have several masks")
        if written.scale is not None:
            raise CannotFixError("the masked scores are scaled")
        if self.source.get_text(node.args[1].value) not in _MINUS_INFINITY:
            raise CannotFixError("the mask does not fill with minus infinity, and hides no score entirely")
        written.mask = condition = node.args[0].value
        if isinstance(condition, cst.Comparison) and len(condition.comparisons) == 1 and not condition.lpar:
            target = condition.comparisons[0]
            if isinstance(target.operator, cst.Equal) and self.source.get_text(target.comparator) == "0":
                written.mask, written.mask_text = condition.left, f"{self.source.get_text(condition.left)} != 0"
                return node.func.value
        if isinstance(condition, cst.UnaryOperation) and isinstance(condition.operator, cst.BitInvert):
            written.mask, written.mask_text = condition.expression, self.source.get_text(condition.expression)
        else:
            written.mask_text, written.hides = f"~{self.source.get_operand(condition)}", True
        return node.func.value

    def _transpose(self, node: cst.BaseExpression) -> str:
        """Return the keys, of which the source has the transpose."""
        if isinstance(node, cst.Attribute) and node.attr.value == "mT":
            return self.source.get_text(node.value)
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == "transpose":
            swapped = [self.source.get_text(argument.value) for argument in node.args]
            if set(swapped) in _SWAPPED and len(swapped) == 2:
                return self.source.get_text(node.func.value)
        return f"{self.source.get_operand(node)}.transpose(-2, -1)"

    def _read_einsum(self, call: cst.Call) -> tuple[str, str, str]:
        """Return the labels of two operands and of the result."""
        try:
            equation = ast.literal_eval(self.source.get_text(call.args[0].value))
        except (ValueError, SyntaxError) as error:
            raise CannotFixError("the equation of `einsum` does not stand in the source") from error
        sides = str(equation).replace(" ", "").split("->")
        operands = sides[0].split(",")
        if len(sides) != 2 or len(operands) != 2 or "." in sides[0]:
            raise CannotFixError("the equation of `einsum` is not one of two operands")
        return operands[0], operands[1], sides[1]

    def check_gone(self, second: cst.BaseExpression, written: WrittenAttention) -> None:
        """Raise `CannotFixError` if anything else reads what goes, or stands between it."""
        last = self.source.get_statement(second)
        lines = {self.source.parents[one] for one in written.gone}
        line: cst.CSTNode | None = last
        while lines and line is not None:
            line = self.source.get_statement_before(line)
            if line not in lines:
                raise CannotFixError("other statements stand between the products")
            lines.remove(line)
        for one in written.gone:
            assert isinstance(one, cst.Assign)
            name = find_assigned_name(self.source, one.value)
            inside = [*written.gone, last]
            for node in list_occurrences(self.source, self.function, name or ""):
                if not any(self.source.is_inside(node, place) for place in inside):
                    raise CannotFixError(f"something else reads or assigns `{name}`, too")

    def check_parts(self, written: WrittenAttention) -> None:
        """Raise `CannotFixError` if the caller may pass another scale or mask, of a kind that was not seen."""
        given = {parameter.name.value for parameter in _list_parameters(self.function)}
        for what, node in (("scale", written.scale), ("mask", written.mask)):
            if isinstance(node, cst.Name) and node.value in given:
                raise CannotFixError(f"its {what} comes from the caller, and other calls may pass another kind")

    def check_result(self, second: cst.BaseExpression) -> None:
        """Raise `CannotFixError` if what follows may need the strides that the product gives its result."""
        name = find_assigned_name(self.source, second)
        places: Sequence[cst.BaseExpression] = [second]
        if name is not None:
            end = self.source.spans[self.source.get_statement(second)][1]
            found = list_occurrences(self.source, self.function, name)
            places = [node for node in found if self.source.spans[node][0] >= end and self.source.is_read(node)]
        for place in places[:1] if name is not None and self._is_reassigned_next(second, name) else places:
            above = self.source.parents.get(place)
            if isinstance(above, cst.Return):
                raise CannotFixError("its result is returned, with other strides")
            if isinstance(above, cst.Attribute) and above.value is place and above.attr.value not in _FOLLOWING:
                raise CannotFixError(f"`.{above.attr.value}` of the result may not take the strides of a fused kernel")

    def _is_reassigned_next(self, second: cst.BaseExpression, name: str) -> bool:
        """Return True for `x = attn @ v` before `x = x.transpose(1, 2)...`: later reads are of something else."""
        statement = self.source.parents[second]
        assert isinstance(statement, cst.Assign)
        following = self.source.get_statement_after(self.source.parents[statement])
        small = following.body[0] if following is not None and len(following.body) == 1 else None
        return isinstance(small, cst.Assign) and find_assigned_name(self.source, small.value) == name

    def is_top_left(self, condition: cst.BaseExpression) -> bool:
        """Return True for a mask of `triu(1)`, which hides what `is_causal` hides, for any number of queries and keys.
        One whose diagonal depends on the sizes need not."""
        if isinstance(condition, cst.Name):
            found = list_occurrences(self.source, self.function, condition.value)
            assigned = [node for node in found if not self.source.is_read(node)]
            target = self.source.parents.get(assigned[0]) if len(assigned) == 1 and len(found) == 2 else None
            statement = self.source.parents.get(target) if isinstance(target, cst.AssignTarget) else None
            if not isinstance(statement, cst.Assign):
                return False
            if self.source.parents.get(self.source.parents[statement]) is not self.function.body:
                return False
            condition = statement.value
        if isinstance(condition, cst.Call) and get_called_name(condition) == "bool" and not condition.args:
            assert isinstance(condition.func, cst.Attribute)
            condition = condition.func.value
        if not isinstance(condition, cst.Call) or get_called_name(condition) != "triu":
            return False
        diagonal = condition.args[1:] if is_torch_function(condition) else condition.args
        return [self.source.get_text(argument.value) for argument in diagonal] == ["1"]


def _list_parameters(function: cst.FunctionDef) -> Iterator[cst.Param]:
    given = function.params
    yield from (*given.posonly_params, *given.params, *given.kwonly_params)


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
