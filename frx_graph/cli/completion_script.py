"""Completion of a shell's command line as a script that holds all names: no Python is started when Tab is pressed,
which would import torch to know the options of a command. The script is printed anew after an update."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

PROGRAMS = ("frx", "frx-graph")
"""The names under which the command is installed."""


class Shell(enum.StrEnum):
    """Whose completion is known."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@dataclass(frozen=True, slots=True)
class Completable:
    """What may follow a command: `words`, which are commands below it or the choices of an argument, options, and after
    an option one of its choices, where it has any. `switches` are the options that take no value."""

    words: tuple[str, ...]
    options: tuple[str, ...]
    switches: frozenset[str]
    choices: Mapping[str, tuple[str, ...]]


def completion_script(shell: Shell, table: Mapping[tuple[str, ...], Completable]) -> str:
    """The script for that shell. `table` says what follows `frx` (the empty tuple), `frx ledger`, `frx ledger list`.
    All names in it are plain: letters, digits, hyphens."""
    match shell:
        case Shell.BASH:
            return _bash(table)
        case Shell.ZSH:
            return _zsh(table)
        case Shell.FISH:
            return "\n".join(_fish(table)) + "\n"


def _cases(table: Mapping[tuple[str, ...], Completable]) -> tuple[str, str, str]:
    """Three tables of bash and zsh: which words go on with the command, which options have choices, what may follow."""
    paths = "|".join(" ".join(("frx", *path)).replace(" ", "\\ ") for path in table if path)
    choices = "\n".join(
        f"        {_key(path, option)}) words='{' '.join(values)}' ;;"
        for path, at in table.items()
        for option, values in at.choices.items()
    )
    names = "\n".join(
        f"        {_key(path)}) words='{' '.join((*at.words, *at.options))}' ;;" for path, at in table.items()
    )
    return paths, choices, names


def _key(path: tuple[str, ...], *more: str) -> str:
    return "\\ ".join(("frx", *path, *more))


_COMMON = """    local command=frx word words=
    for word in {before}; do
        [ "$word" = -- ] && {{ {program}; return; }}
        case "$command $word" in
            {paths}) command="$command $word" ;;
        esac
    done
    case "$command {last}" in
{choices}
    esac
    if [ -z "$words" ]; then
        case "$command" in
{names}
        esac
    fi
"""


def _bash(table: Mapping[tuple[str, ...], Completable]) -> str:
    paths, choices, names = _cases(table)
    common = _COMMON.format(
        before='"${COMP_WORDS[@]:1:COMP_CWORD-1}"',
        last="${COMP_WORDS[COMP_CWORD-1]}",
        paths=paths,
        choices=choices,
        names=names,
        program="COMPREPLY=()",
    )
    return (
        "# Completion of frx for bash, printed by `frx completion bash`.\n"
        f"_frx() {{\n{common}"
        '    COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))\n'
        "}\n"
        f"complete -o default -F _frx {' '.join(PROGRAMS)}\n"
    )


def _zsh(table: Mapping[tuple[str, ...], Completable]) -> str:
    paths, choices, names = _cases(table)
    common = _COMMON.format(
        before='"${(@)words_typed[2,CURRENT-1]}"',
        last="${words_typed[CURRENT-1]}",
        paths=paths,
        choices=choices,
        names=names,
        program="_files",
    )
    return (
        f"#compdef {' '.join(PROGRAMS)}\n"
        "# Completion of frx for zsh, printed by `frx completion zsh`.\n"
        '_frx() {\n    local -a words_typed=("${words[@]}")\n'
        f"{common}"
        "    compadd -- ${=words}\n"
        "    [[ $PREFIX == -* ]] || _files\n"
        "}\n"
        'if [ "$funcstack[1]" = _frx ]; then _frx "$@"; else compdef _frx ' + " ".join(PROGRAMS) + "; fi\n"
    )


def _fish(table: Mapping[tuple[str, ...], Completable]) -> Iterator[str]:
    yield "# Completion of frx for fish, printed by `frx completion fish`."
    for program in PROGRAMS:
        for path, at in table.items():
            deeper = " ".join(at.words)
            seen = " and ".join(f"__fish_seen_subcommand_from {word}" for word in path)
            unseen = f"not __fish_seen_subcommand_from {deeper}" if deeper else ""
            condition = "; and ".join(filter(None, (seen.replace(" and ", "; and "), unseen)))
            when = f" -n '{condition}'" if condition else ""
            if at.words:
                yield f"complete -c {program}{when} -a '{deeper}'"
            for option in at.options:
                takes = "" if option in at.switches else " -r"
                values = f" -f -a '{' '.join(at.choices[option])}'" if option in at.choices else ""
                kind = f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
                yield f"complete -c {program}{when} {kind}{takes}{values}"
