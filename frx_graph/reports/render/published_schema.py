"""The JSON Schema of a document, as its published file has it."""

from __future__ import annotations

import json

from pydantic import BaseModel


def published_schema(name: str, model: type[BaseModel]) -> str:
    """The text of `{name}.schema.json`, generated from `model` as it is written."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:frx-graph:schema:{name}",
        **model.model_json_schema(by_alias=True, mode="serialization"),
    }
    return json.dumps(schema, indent=2, ensure_ascii=True) + "\n"
