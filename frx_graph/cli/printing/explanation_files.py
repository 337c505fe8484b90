"""Write the three files of an explanation: all of them, or none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from frx_graph.cli.printing.output import print_notice, print_report
from frx_graph.errors import OptionError
from frx_graph.reports.kernels import explain_prompt, explain_summary
from frx_graph.reports.kernels.explain_document import ExplainDocument
from frx_graph.reports.kernels.explain_prompt import EVIDENCE, PROMPT, SUMMARY, render_explanation
from frx_graph.support.atomic_file import write_all_atomically

_BEGINS = {
    SUMMARY: explain_summary.FIRST_WORDS,
    PROMPT: explain_prompt.FIRST_WORDS,
    EVIDENCE: '{\n  "schema": "frx_explain_v0"',
}


@dataclass(frozen=True, slots=True)
class ExplanationFiles:
    """Files in `folder`, which is created if missing. Files of an earlier explanation are replaced; other files of
    these names only with `force`."""

    folder: Path
    force: bool = False

    def check(self) -> None:
        """Raise `OptionError` for obstacles that show before any long work begins."""
        if self.folder.exists() and not self.folder.is_dir():
            raise OptionError(
                f"{self.folder} is not a folder", "explanations are three files: choose a folder for them"
            )
        for name, begins in _BEGINS.items():
            path = self.folder / name
            if path.is_dir() or (path.exists() and not path.is_file()):
                raise OptionError(f"{path} is not a regular file", "choose another folder")
            if path.exists() and not self.force and not _is_ours(path, begins):
                raise OptionError(f"{path} was not written by frx explain", "move it, or let --force replace it")

    def write(self, document: ExplainDocument, *, shown: bool = False) -> None:
        """Write the files, print the summary if it is to be `shown`, and name the files. Raises `OptionError` if they
        cannot be written; earlier files then stay as they were."""
        self.check()
        texts = render_explanation(document)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_all_atomically({self.folder / name: text for name, text in texts.items()})
        except OSError as error:
            raise OptionError(f"cannot write into {self.folder}: {error.strerror}", "choose another folder") from error
        if shown:
            print_report(texts[SUMMARY], color=False)
        *names, last = texts
        folder = "the current folder" if self.folder == Path() else self.folder
        print_notice(f"frx: wrote {', '.join(names)} and {last} to {folder}")


def _is_ours(path: Path, begins: str) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(begins)) == begins.encode()
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror}", "choose another folder") from error
