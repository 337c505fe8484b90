"""Name modules as a file's own imports do."""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from frx_graph.fix.source_file import CannotFixError, SourceFile


def name_functional(source: SourceFile) -> str:
    """Return the file's name of `torch.nn.functional`. Raises `CannotFixError` if it has none."""
    best = ""
    for statement in m.findall(source.module, m.Import() | m.ImportFrom()):
        if isinstance(statement, cst.Import):
            for alias in statement.names:
                name = source.get_text(alias.name)
                known = _get_alias(alias)
                if name == "torch.nn.functional":
                    return known or name
                if name == "torch" or (name.startswith("torch.") and not known):
                    best = best or f"{known or 'torch'}.nn.functional"
        elif isinstance(statement, cst.ImportFrom) and not isinstance(statement.names, cst.ImportStar):
            package = "" if statement.module is None else source.get_text(statement.module)
            for alias in statement.names:
                name = source.get_text(alias.name)
                if (package, name) == ("torch.nn", "functional"):
                    return _get_alias(alias) or name
                if (package, name) == ("torch", "nn"):
                    best = best or f"{_get_alias(alias) or name}.functional"
    if not best:
        raise CannotFixError("the file does not import torch")
    return best


def _get_alias(alias: cst.ImportAlias) -> str:
    if alias.asname is None:
        return ""
    return alias.asname.name.value if isinstance(alias.asname.name, cst.Name) else ""
