"""Cards in YAML files: checked as they are read, and named as what they hold."""

from __future__ import annotations

from importlib import resources
from typing import TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from frx_graph.errors import ContractError

Card = TypeVar("Card", bound=BaseModel)


def parse_card_file(text: str, source: str, model: type[Card], key: str) -> Card:
    """The card in `text`; `source` is its file name, which must be the value of its `key`, and `.yaml`.

    Raises `ContractError`, naming `source`, for malformed YAML, missing or unknown keys, and a wrong file name.
    """
    try:
        card = model.model_validate(yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise ContractError(f"{source} is not YAML: {str(error).splitlines()[0]}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the card"
        raise ContractError(f"{source}: {where}: {first['msg']}") from error
    name = getattr(card, key)
    if source != f"{name}.yaml":
        raise ContractError(f"{source} holds the card of {name}", f"name it {name}.yaml")
    return card


def card_files(folder: str) -> tuple[tuple[str, str], ...]:
    """Name and text of each card in a folder of the rules, by name."""
    files = (entry for entry in (resources.files("frx_graph.rules") / folder).iterdir() if entry.name.endswith(".yaml"))
    return tuple((entry.name, entry.read_text(encoding="utf-8")) for entry in sorted(files, key=lambda one: one.name))
