"""Read cards from YAML files and check them."""

from __future__ import annotations

from importlib import resources
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from frx_graph.errors import ContractError

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
Card = TypeVar("Card", bound=BaseModel)
Prose = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class StrictModel(BaseModel):
    """Base of all cards: frozen, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def parse_yaml(text: str, source: str, model: type[Card]) -> Card:
    """Return the model in `text`. Raises `ContractError`, naming `source`, for malformed YAML and for wrong keys."""
    try:
        return model.model_validate(yaml.load(text, Loader=_LOADER))
    except yaml.YAMLError as error:
        raise ContractError(f"{source} is not YAML: {str(error).splitlines()[0]}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise ContractError(f"{source}: {where}: {first['msg']}") from error


def parse_card(text: str, source: str, model: type[Card], key: str) -> Card:
    """Return the card in `text`. The file name `source` must be the card's `key` value plus `.yaml`.

    Raises `ContractError`, naming `source`, for malformed YAML, missing or unknown keys, and a wrong file name.
    """
    card = parse_yaml(text, source, model)
    name = getattr(card, key)
    if source != f"{name}.yaml":
        raise ContractError(f"{source} holds the card of {name}", f"name it {name}.yaml")
    return card


def load_cards(folder: str, model: type[Card], key: str) -> tuple[Card, ...]:
    """Return the cards in a folder of the rules, by file name. Raises `ContractError` as `parse_card` does."""
    return tuple(parse_card(text, name, model, key) for name, text in list_card_files(folder))


def list_card_files(folder: str) -> tuple[tuple[str, str], ...]:
    """Return name and text of each card in a folder of the rules, by name."""
    files = (entry for entry in (resources.files("frx_graph.rules") / folder).iterdir() if entry.name.endswith(".yaml"))
    return tuple((entry.name, entry.read_text(encoding="utf-8")) for entry in sorted(files, key=lambda one: one.name))
