"""Pages of click commands: one for the command, one for each command of a group; deeper ones are parts of a page."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from slurm_plugin.manual import epilog
from slurm_plugin.manual.page import Entry, Page, Part

_CONFIGURATION = "explsched.yaml(5)"


def pages(name: str, command: click.Command, section: int) -> Iterator[Page]:
    """The page of `name`, then those of its commands, such as sexplsched-status(1)."""
    # The entry points of ours set the same prefix: every option has a variable.
    context = click.Context(command, info_name=name, auto_envvar_prefix=name.upper())
    children = _inner(context)
    references = tuple(f"{name}-{child.info_name}({section})" for child in children)
    listed = tuple(
        Entry(f"{child.command_path}", f"{_summary(child.command)} See `{reference}`.")
        for child, reference in zip(children, references, strict=True)
    )
    yield _page(name, context, section, listed, (*references, _CONFIGURATION))
    for child in children:
        yield _page(f"{name}-{child.info_name}", child, section, (), (f"{name}({section})", _CONFIGURATION))


def _page(
    name: str, context: click.Context, section: int, listed: tuple[Entry, ...], see_also: tuple[str, ...]
) -> Page:
    command = context.command
    end = epilog.read(command.epilog)
    inner = [] if listed else _inner(context)
    return Page(
        name,
        section,
        _summary(command).rstrip("."),
        synopsis=_synopsis(context),
        description="\n\n".join(text for text in (inspect.cleandoc(command.help or ""), end.rest) if text),
        options=_options(context),
        parts=tuple(
            Part(child.command_path, _synopsis(child), inspect.cleandoc(child.command.help or ""), _options(child))
            for child in inner
        ),
        entries=listed,
        entries_title="COMMANDS",
        exit_status=end.exit_status or "0 success, 1 failure, 2 wrong usage.",
        variables=(*end.variables, *(entry for part in (context, *inner) for entry in _variables(part))),
        examples=end.examples,
        files=end.files,
        see_also=see_also,
    )


def _inner(context: click.Context) -> list[click.Context]:
    """The contexts of a group's commands; of another command none."""
    group = context.command
    if not isinstance(group, click.Group):
        return []
    found = [(word, group.get_command(context, word)) for word in group.list_commands(context)]
    return [
        click.Context(child, parent=context, info_name=word)
        for word, child in found
        if child is not None and not child.hidden
    ]


def _summary(command: click.Command) -> str:
    paragraph = inspect.cleandoc(command.help or "").partition("\n\n")[0]
    return command.short_help or paragraph.partition(". ")[0].rstrip(".") + "."


def _synopsis(context: click.Context) -> str:
    return " ".join((context.command_path, *context.command.collect_usage_pieces(context)))


def _options(context: click.Context) -> tuple[Entry, ...]:
    records = [parameter.get_help_record(context) for parameter in context.command.get_params(context)]
    return tuple(Entry(record[0], record[1]) for record in records if record is not None and record[1])


def _variables(context: click.Context) -> Iterator[Entry]:
    for option in context.command.params:
        if not isinstance(option, click.Option) or option.is_eager or option.name is None:
            continue
        longest = max(option.opts, key=len)
        names = [option.envvar] if isinstance(option.envvar, str) else list(option.envvar or ())
        own = names or [f"{context.auto_envvar_prefix}_{option.name.upper()}"]
        yield from (Entry(name, f"Default of {longest} of `{context.command_path}`.") for name in own)
