"""Let transformers use its fused attention, where the user's code asks for the one that is written out (FRX012).

The finding is in the installed package, which is never changed. `attn_implementation="eager"` in the function that
builds the model becomes `"sdpa"`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import libcst as cst
import libcst.matchers as m

from frx_graph.fix.fixer import Fixer, FixSubject, OtherFixerError
from frx_graph.fix.source_file import CannotFixError, is_installed
from frx_graph.records import SourceEdit

_ASKED = m.Arg(
    keyword=m.Name("attn_implementation"),
    value=m.SimpleString(value=m.MatchIfTrue(lambda text: text.strip("'\"") == "eager")),
)


def propose(subject: FixSubject) -> Sequence[SourceEdit]:
    """Return the change of the argument."""
    if not is_in_transformers(subject.finding.site.file):
        raise OtherFixerError
    nodes = set(subject.finding.nodes)
    if not any(one.softmax.node in nodes for one in subject.analysis.replaceable_attentions):
        raise CannotFixError("a fused kernel would not run it here")
    if subject.builder is None:
        raise CannotFixError('transformers chooses it: build the model with attn_implementation="sdpa"')
    source = subject.files.get(subject.builder.file)
    found = m.findall(source.find_function(subject.builder), _ASKED)
    if len(found) != 1:
        raise CannotFixError(
            'transformers chooses it, and the function that builds the model does not say "eager" once'
        )
    (argument,) = found
    assert isinstance(argument, cst.Arg)
    return [source.replace_node(argument.value, source.get_text(argument.value).replace("eager", "sdpa"))]


def is_in_transformers(file: str) -> bool:
    """Return True for a file of the installed package."""
    return is_installed(file) and "transformers" in Path(file).parts


FIXER = Fixer("FRX012", "attention_setting", propose)
