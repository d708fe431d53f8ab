"""Completion for bash: click's own for its commands; for the others a function made from their options.

Nothing of ours runs when the latter complete: on a node's slow file system starting Python would be felt.
"""

from __future__ import annotations

import argparse

import click
from click.shell_completion import BashComplete

from slurm_plugin.manual.commands import commands

_FUNCTION = """\
_{name}() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}} own
    for own in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        [ "$own" != -- ] || return 0
    done
    case $before in
{values}    *) mapfile -t COMPREPLY < <(compgen -W "{options}" -- "$word") ;;
    esac
}}
complete -o bashdefault -o default -F _{name} {name}
"""


def scripts() -> dict[str, str]:
    """What bash-completion loads for each command, by the command's name."""
    return {name: _script(name, command) for name, command in commands().items()}


def _script(name: str, command: click.Command | argparse.ArgumentParser) -> str:
    if isinstance(command, click.Command):
        return BashComplete(command, {}, name, f"_{name.upper()}_COMPLETE").source()
    actions = command._actions
    options = [option for action in actions for option in action.option_strings]
    values = [_values(action) for action in actions if action.option_strings and action.nargs != 0]
    return _FUNCTION.format(name=name, options=" ".join(options), values="".join(values))


def _values(action: argparse.Action) -> str:
    """What may follow an option: one of its choices, else what bash completes by itself."""
    words = " ".join(str(choice) for choice in action.choices or ())
    offer = f'mapfile -t COMPREPLY < <(compgen -W "{words}" -- "$word")' if words else "COMPREPLY=()"
    return f"    {' | '.join(action.option_strings)}) {offer} ;;\n"
