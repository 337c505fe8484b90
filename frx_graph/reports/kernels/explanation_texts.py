"""The three files of an explanation: for people, for a language model, and as JSON."""

from __future__ import annotations

import json
from typing import Final

from frx_graph.reports.kernels.explain_document import ExplainDocument
from frx_graph.reports.kernels.explain_prompt import render_prompt
from frx_graph.reports.kernels.explain_summary import render_summary
from frx_graph.reports.render.document import to_json

SUMMARY: Final = "frx_summary.txt"
PROMPT: Final = "frx_llm_prompt.txt"
EVIDENCE: Final = "frx_evidence.json"
FILES: Final = (SUMMARY, PROMPT, EVIDENCE)


def explanation_texts(document: ExplainDocument) -> dict[str, str]:
    """What is in each of them, by its name."""
    return {
        SUMMARY: render_summary(document),
        PROMPT: render_prompt(document),
        EVIDENCE: json.dumps(to_json(document), indent=2, allow_nan=False) + "\n",
    }
