"""Store convolution weights in channels-last, where each call converts them because their images are (FRX007).

Every convolution of the model then returns channels-last images, so the change needs `--unsafe-fixes`. Values stay.
"""

from __future__ import annotations

from collections.abc import Sequence

from frx_graph.fix.fixer import Fixer, FixSubject, OtherFixerError
from frx_graph.fix.model_class import convert_weights
from frx_graph.fix.source_file import CannotFixError
from frx_graph.records import Effort, SourceEdit


def propose(subject: FixSubject) -> Sequence[SourceEdit]:
    """Return the insertion at the end of the `__init__` of the model's class."""
    finding, facts = subject.finding, subject.analysis.facts
    if finding.effort is not Effort.ONE_LINE:
        raise OtherFixerError
    if subject.root is None:
        raise CannotFixError("the model is of a class of torch: call `.to(memory_format=...)` where it is made")
    ranks = {len(facts.values[copy.value].shape) for copy in finding.copies if copy.value in facts.values}
    if len(ranks) != 1:
        raise CannotFixError("its weights have different numbers of dimensions")
    source = subject.files.get(subject.root.file)
    return convert_weights(source, source.find_function(subject.root), facts, ranks.pop())


FIXER = Fixer("FRX007", "stored_weights", propose, unsafe=True)
