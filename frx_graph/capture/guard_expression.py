"""What a guard of Dynamo's checks, in words that are the same in every process that compiles the same program."""

from __future__ import annotations

import re

_IDENTITY = re.compile(r"^(?P<head>.*___check_\w*id\(.*), \d+\)(?P<rest>, type=<.*>)?$", re.S)
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+\b")
_UNIQUE_NAME = re.compile(r"(?P<name>__builtins_dict_|___unnamed_scope|__resume_at_\d+|__compiled_fn)_+[0-9a-f_]+")
_NAMED_BY_ID = re.compile(r"\b(?P<prefix>\w*?)_\d{11,}_c\w+\b")
"""Any other that `install_global_by_id` names: `_140271496230000_c0` is the module `torch`, without a prefix."""
_LONG_NUMBER = re.compile(r"(?<![\w.])\d{11,}(?![\w.])")
"""Addresses in decimal: `id()` in CPython. No size or stride of a tensor that fits into memory is so large."""


def normalised_guard(expression: str) -> str:
    """`expression` as `GuardManagerWrapper.code_parts` has it, without object ids, addresses, and the serial numbers of
    names that Dynamo puts into globals (`torch/_dynamo/output_graph.py`, `install_global`).

    That the object is a particular one remains: `___check_obj_id(G['torch']), type=<class 'module'>`.
    """
    found = _IDENTITY.match(expression)
    if found is not None:
        expression = f"{found['head']}){found['rest'] or ''}"
    expression = _UNIQUE_NAME.sub(lambda match: match["name"].rstrip("_"), expression)
    expression = _NAMED_BY_ID.sub(r"\g<prefix>_#", expression)
    return _LONG_NUMBER.sub("#", _ADDRESS.sub("0x", expression))
