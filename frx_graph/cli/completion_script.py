"""Write shell completion as a script that holds all names, so that pressing Tab starts no Python.

Loading the options of all commands would import torch, so the scripts are in the package: `FRX_GOLDEN=write pytest
tests/cli/test_completion.py` writes them. A user prints them again after an update.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence

from typer.core import TyperOption

from frx_graph.cli.command_tree import DescribedCommand, list_choices

PROGRAMS = ("frx", "frx-graph")
"""The installed names of the command."""

_TABLES = """    local command=frx word words=
    for word in {before}; do
        [ "$word" = -- ] && {{ {behind_dashes}; return; }}
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


class Shell(enum.StrEnum):
    """The shells that have completion."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def write_completion_script(shell: Shell, commands: Sequence[DescribedCommand]) -> str:
    """Return the script for a shell. All names in it are plain: letters, digits and hyphens."""
    match shell:
        case Shell.BASH:
            return _write_bash(commands)
        case Shell.ZSH:
            return _write_zsh(commands)
        case Shell.FISH:
            return "\n".join(_write_fish_lines(commands)) + "\n"


def _list_words(command: DescribedCommand) -> list[str]:
    """Return the subcommands, and the choices of the arguments."""
    return [*command.below, *(choice for each in command.arguments for choice in list_choices(each))]


def _collect_options(command: DescribedCommand) -> Iterator[tuple[str, TyperOption | None]]:
    """Yield each name of an option with the option; None for `--help`."""
    for option in command.options:
        for name in (*option.opts, *option.secondary_opts):
            yield name, option
    yield "--help", None


def _write_tables(commands: Sequence[DescribedCommand], *, before: str, last: str, behind_dashes: str) -> str:
    """Return the `case` tables of bash and zsh: words that extend the command, options with choices, what may follow.

    The arguments are shell expressions: the words before the cursor, the last of them, and what to do behind `--`.
    """

    def format_case(command: DescribedCommand, words: Sequence[str], *more: str) -> str:
        key = "\\ ".join(("frx", *command.path, *more))
        return f"        {key}) words='{' '.join(words)}' ;;"

    choices = [
        format_case(command, values, name)
        for command in commands
        for name, option in _collect_options(command)
        if option is not None and (values := list_choices(option))
    ]
    names = [
        format_case(command, [*_list_words(command), *(name for name, _ in _collect_options(command))])
        for command in commands
    ]
    return _TABLES.format(
        before=before,
        last=last,
        behind_dashes=behind_dashes,
        paths="|".join("\\ ".join(("frx", *command.path)) for command in commands if command.path),
        choices="\n".join(choices),
        names="\n".join(names),
    )


def _write_bash(commands: Sequence[DescribedCommand]) -> str:
    tables = _write_tables(
        commands,
        before='"${COMP_WORDS[@]:1:COMP_CWORD-1}"',
        last="${COMP_WORDS[COMP_CWORD-1]}",
        behind_dashes="COMPREPLY=()",
    )
    return (
        "# Completion of frx for bash, printed by `frx completion bash`.\n"
        f"_frx() {{\n{tables}"
        '    COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))\n'
        "}\n"
        f"complete -o default -F _frx {' '.join(PROGRAMS)}\n"
    )


def _write_zsh(commands: Sequence[DescribedCommand]) -> str:
    tables = _write_tables(
        commands,
        before='"${(@)words_typed[2,CURRENT-1]}"',
        last="${words_typed[CURRENT-1]}",
        behind_dashes="_files",
    )
    return (
        f"#compdef {' '.join(PROGRAMS)}\n"
        "# Completion of frx for zsh, printed by `frx completion zsh`.\n"
        '_frx() {\n    local -a words_typed=("${words[@]}")\n'
        f"{tables}"
        "    compadd -- ${=words}\n"
        "    [[ $PREFIX == -* ]] || _files\n"
        "}\n"
        'if [ "$funcstack[1]" = _frx ]; then _frx "$@"; else compdef _frx ' + " ".join(PROGRAMS) + "; fi\n"
    )


def _write_fish_lines(commands: Sequence[DescribedCommand]) -> Iterator[str]:
    yield "# Completion of frx for fish, printed by `frx completion fish`."
    for program in PROGRAMS:
        for command in commands:
            words = " ".join(_list_words(command))
            conditions = [f"__fish_seen_subcommand_from {word}" for word in command.path]
            if words:
                conditions.append(f"not __fish_seen_subcommand_from {words}")
            when = f" -n '{'; and '.join(conditions)}'" if conditions else ""
            if words:
                yield f"complete -c {program}{when} -a '{words}'"
            for name, option in _collect_options(command):
                takes = "" if option is None or option.is_flag else " -r"
                choices = () if option is None else list_choices(option)
                values = f" -f -a '{' '.join(choices)}'" if choices else ""
                kind = f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
                yield f"complete -c {program}{when} {kind}{takes}{values}"
