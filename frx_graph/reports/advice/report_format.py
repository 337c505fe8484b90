"""What a report can be written as."""

from __future__ import annotations

import enum


class Format(enum.StrEnum):
    """Named as on the command line and in the project file."""

    TEXT = "text"
    JSON = "json"
    HTML = "html"
    MD = "md"
    SARIF = "sarif"
    GITHUB = "github"
