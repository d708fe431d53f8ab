"""Writes the man pages, made from the commands and the configuration: `python scripts/manual DIRECTORY`.

Python must be one that explsched is installed for. Why no other generator does:
docs/decisions/0007-own-generators.md.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import click
import jinja2

from explsched import strict_yaml
from explsched.cli import root
from explsched.job_options.comment import PREFIX
from explsched.job_options.table import CHECKPOINT, OPTIONS, SPANK_PREFIX, SWEEP, VARIABLE_PREFIX, Option
from slurm_plugin import daemon
from slurm_plugin.config import DEFAULT_PATH, PATH_VARIABLE, Config
from wrappers import sxbatch, sxreport, sxrun

COMMANDS: dict[str, tuple[click.Command, int]] = {"sexplsched": (root, 1), "sexplschedd": (daemon.command, 8)}
WRAPPERS = {parser.prog: parser for parser in (one.options_parser() for one in (sxbatch, sxreport, sxrun))}
CONFIGURATION = ("explsched.yaml", 5)
ALL = (*((name, section) for name, (_, section) in COMMANDS.items()), *((name, 1) for name in WRAPPERS))

_HEADING = re.compile(r"(?i)(examples?|environment|files|exit status):[ ]*(.*)")
_ESCAPES = str.maketrans(
    {"\\": r"\e", "-": r"\-", "'": r"\(aq", "^": r"\(ha", "~": r"\(ti", "`": r"\(ga", '"': r"\(dq"}
)
_BREAK = "\u200b"  # a break without width, in Unicode; roff's own would be escaped
_LONG_WORD = 40


@dataclass(frozen=True)
class Entry:
    """A term and what it means: an option, a variable, a key, a file."""

    term: str
    text: str


@dataclass(frozen=True)
class Part:
    r"""What stands below a heading; with a title it is a part of that, such as one command of several.

    `text` has paragraphs separated by blank lines; one that begins with a line `\b` is kept line by line, as in click's
    help texts, and so is `example`. Words in `backquotes` are set in bold.
    """

    heading: str
    text: str = ""
    entries: tuple[Entry, ...] = ()
    title: str = ""
    synopsis: str = ""
    example: str = ""


@dataclass(frozen=True)
class Page:
    """One man page."""

    name: str
    section: int
    summary: str
    groups: tuple[Part, ...]
    see_also: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Epilog:
    """The sections of a help text's end; `rest` is what stands before the first."""

    rest: str
    exit_status: str
    variables: tuple[Entry, ...]
    examples: str
    files: tuple[Entry, ...]


def pages() -> Iterator[Page]:
    """Every page: section 1 for commands, 5 for the configuration file, 7 for job options, 8 for the daemon."""
    for name, (command, section) in COMMANDS.items():
        yield from _click_pages(name, command, section)
    yield from map(_wrapper_page, WRAPPERS.values())
    yield _configuration_page()
    yield _job_options_page()


def _click_pages(name: str, command: click.Command, section: int) -> Iterator[Page]:
    """The page of a command and, of a group, one for each of its commands; what is below those are parts of a page."""
    # Our entry points set the same prefix: every option has a variable.
    context = click.Context(command, info_name=name, auto_envvar_prefix=name.upper())
    children = _children(context)
    own = tuple((f"{name}-{child.info_name}", section) for child in children)
    listed = tuple(
        Entry(child.command_path, f"{_summary(child.command)}. See `{page}({section})`.")
        for child, (page, _) in zip(children, own, strict=True)
    )
    commands = (Part("COMMANDS", entries=listed),) if listed else ()
    yield _click_page((name, section), context, commands, _variables(context), (*own, CONFIGURATION))
    for page, child in zip(own, children, strict=True):
        parts = [
            Part("COMMANDS", _help(part), _options(part), title=part.command_path, synopsis=_synopsis(part))
            for part in _children(child)
        ]
        variables = (*_variables(child), *(entry for part in _children(child) for entry in _variables(part)))
        yield _click_page(page, child, tuple(parts), variables, ((name, section), CONFIGURATION))


def _click_page(
    name: tuple[str, int],
    context: click.Context,
    commands: tuple[Part, ...],
    variables: tuple[Entry, ...],
    see_also: tuple[tuple[str, int], ...],
) -> Page:
    end = _epilog(context.command.epilog)
    groups = (
        Part("SYNOPSIS", synopsis=_synopsis(context)),
        Part("DESCRIPTION", f"{_help(context)}\n\n{end.rest}"),
        Part("OPTIONS", entries=_options(context)),
        *commands,
        Part("EXIT STATUS", end.exit_status or "0 success, 1 failure, 2 wrong usage."),
        Part("ENVIRONMENT", entries=(*end.variables, *variables)),
        Part("EXAMPLES", example=end.examples),
        Part("FILES", entries=end.files),
    )
    return Page(*name, _summary(context.command), _filled(groups), see_also)


def _children(context: click.Context) -> list[click.Context]:
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


def _help(context: click.Context) -> str:
    return inspect.cleandoc(context.command.help or "")


def _summary(command: click.Command) -> str:
    first = inspect.cleandoc(command.help or "").partition("\n\n")[0].partition(". ")[0]
    return (command.short_help or first).rstrip(".")


def _synopsis(context: click.Context) -> str:
    return " ".join((context.command_path, *context.command.collect_usage_pieces(context)))


def _options(context: click.Context) -> tuple[Entry, ...]:
    records = [parameter.get_help_record(context) for parameter in context.command.get_params(context)]
    return tuple(Entry(record[0], record[1]) for record in records if record is not None and record[1])


def _variables(context: click.Context) -> tuple[Entry, ...]:
    """The variable of each option: its default, if the option is not given."""
    found: list[Entry] = []
    for option in context.command.params:
        if not isinstance(option, click.Option) or not option.allow_from_autoenv or option.name is None:
            continue
        own = [option.envvar] if isinstance(option.envvar, str) else list(option.envvar or ())
        names = own or [f"{context.auto_envvar_prefix}_{option.name.upper()}"]
        found += [Entry(name, f"Default of {max(option.opts, key=len)} of `{context.command_path}`.") for name in names]
    return tuple(found)


def _wrapper_page(parser: argparse.ArgumentParser) -> Page:
    end = _epilog(parser.epilog)
    about = parser.description or ""
    groups = (
        Part("SYNOPSIS", synopsis=" ".join(parser.format_usage().removeprefix("usage: ").split())),
        Part("DESCRIPTION", f"{about}\n\n{end.rest}"),
        *_argparse_options(parser),
        Part("EXIT STATUS", end.exit_status),
        Part("ENVIRONMENT", entries=end.variables),
        Part("EXAMPLES", example=end.examples),
        Part("FILES", entries=end.files),
    )
    others = tuple(one for one in ALL if one[0] != parser.prog)
    return Page(parser.prog, 1, about.partition(". ")[0].rstrip("."), _filled(groups), others)


def _argparse_options(parser: argparse.ArgumentParser) -> Iterator[Part]:
    """One group of options for each of argparse's. What has no help is in the synopsis."""
    formatter = parser._get_formatter()
    for i, group in enumerate(parser._action_groups):
        entries = tuple(
            Entry(formatter._format_action_invocation(action), formatter._expand_help(action))
            for action in group._group_actions
            if action.help not in (None, argparse.SUPPRESS)
        )
        title = group.title or "" if i > 1 else ""  # the first two are argparse's own
        if entries:
            yield Part("OPTIONS", group.description or "", entries, title)


def _epilog(text: str | None) -> Epilog:
    r"""The sections of an epilog, with or without click's `\b` marks.

    A line such as `examples:` at the left begins a section; what follows is indented, or stands on the same line.
    """
    sections: dict[str, list[str]] = {"": []}
    current = sections[""]
    for line in inspect.cleandoc((text or "").replace("\b", "")).splitlines():
        if heading := _HEADING.fullmatch(line):
            current = sections.setdefault(heading[1].lower().removesuffix("s"), [])
            current += [heading[2]] if heading[2] else []
        else:
            current.append(line)
    block = {name: inspect.cleandoc("\n" + "\n".join(lines)).strip() for name, lines in sections.items()}
    return Epilog(
        rest=block[""],
        exit_status=block.get("exit statu", ""),
        variables=_entries(block.get("environment", "")),
        examples=block.get("example", ""),
        files=_entries(block.get("file", "")),
    )


def _entries(block: str) -> tuple[Entry, ...]:
    """One entry a line: the term, two blanks or more, the meaning; deeper lines go on with it."""
    entries: list[Entry] = []
    for line in block.splitlines():
        term, _, meaning = line.partition("  ")
        if not term and entries:
            entries[-1] = Entry(entries[-1].term, f"{entries[-1].text} {line.strip()}")
        elif term:
            entries.append(Entry(term, meaning.strip()))
    return tuple(entries)


def _configuration_page() -> Page:
    keys = tuple(
        Entry(key.name, f"{key.meaning}. Accepted: {key.accepted}. Default: {key.default}")
        for key in strict_yaml.keys(Config)
    )
    sections = "\n\n".join(f"`{key}`: {meaning}" for key, meaning in strict_yaml.meanings(Config).items())
    about = (
        f"YAML, read by `sexplschedd` and by `sexplsched` from the file given with --config, else from the one that the"
        f" variable {PATH_VARIABLE} names, else from {DEFAULT_PATH}. Every key is optional; an unknown key or a wrong"
        " value is an error, and a running daemon that is told to reload such a file keeps what it has. Keys in dots"
        " stand in sections: `slurm.client` is the key `client` of the mapping `slurm`.\n\nThe sections:\n\n"
    )
    groups = (
        Part("DESCRIPTION", about + sections),
        Part("KEYS", entries=keys),
        Part("ENVIRONMENT", entries=(Entry(PATH_VARIABLE, f"The file to read instead of {DEFAULT_PATH}."),)),
        Part("EXAMPLES", example="policy: srsf\nslurm:\n  partitions: [gpu]\npreemption:\n  max_per_hour: 50"),
        Part("FILES", entries=(Entry(str(DEFAULT_PATH), "The file."),)),
    )
    return Page(*CONFIGURATION, "configuration of explsched", groups, ALL)


def _job_options_page() -> Page:
    sweep, checkpoint = SWEEP.name, CHECKPOINT.name
    about = (
        "Each option has one name. On the command line it is `--NAME` of the commands named below, and, if `sxbatch`"
        f" is one, `--{SPANK_PREFIX}NAME` of `sbatch`, `srun` and `salloc` where the site has the SPANK plugin. In the"
        f" environment it is `{VARIABLE_PREFIX}NAME`, in capitals and with `_` for `-`. In the job's comment it is a"
        f" key of the entry `{PREFIX}NAME=VALUE&NAME=VALUE`, values URL-encoded. The command line overrides the"
        " environment, which overrides #SXBATCH lines of the script. Inside a job the variables are its own:"
        " a job that it submits does not inherit its permissions."
    )
    examples = (
        f"sxbatch --{sweep} digits --{checkpoint} USR1 train.sh\n"
        f"sbatch --{SPANK_PREFIX}{sweep}=digits --{SPANK_PREFIX}{checkpoint}=USR1 train.sh\n"
        f'sbatch --requeue --open-mode=append --comment="{PREFIX}{sweep}=digits&{checkpoint}=USR1" train.sh'
    )
    groups = (
        Part("DESCRIPTION", about),
        Part("OPTIONS", entries=tuple(map(_job_option, OPTIONS))),
        Part("EXAMPLES", example=examples),
    )
    others = (("sxbatch", 1), ("sxrun", 1), ("sbatch", 1))
    return Page("explsched-options", 7, "job options of explsched", groups, others)


def _job_option(option: Option) -> Entry:
    commands = " and ".join(f"`{command}`" for command in option.commands)
    text = f"{option.help[:1].upper()}{option.help[1:]}. Of {commands}. Accepted: {option.kind.accepted}."
    return Entry(option.name, text)


def _filled(groups: tuple[Part, ...]) -> tuple[Part, ...]:
    return tuple(group for group in groups if group.text or group.entries or group.synopsis or group.example)


def _literal(text: str) -> str:
    return text.translate(_ESCAPES)


def _prose(text: str) -> str:
    """Running text on one line; what stands in backquotes is bold. Lists too long for a line may break at commas."""
    words = (word.replace(",", f",{_BREAK}") if len(word) > _LONG_WORD else word for word in text.split())
    pieces = re.split(r"`([^`]+)`", " ".join(words))
    typeset = "".join(f"\\fB{_literal(p)}\\fR" if i % 2 else _literal(p) for i, p in enumerate(pieces))
    return _guarded(typeset.replace(_BREAK, r"\:"))


def _verbatim(text: str) -> str:
    return "\n".join((".EX", *(_guarded(_literal(line)) for line in text.rstrip().splitlines()), ".EE"))


def _paragraphs(text: str) -> str:
    found = re.split(r"\n\s*\n", text.strip("\n "))
    return "\n.PP\n".join(_verbatim(p[2:]) if p.startswith("\b\n") else _prose(p) for p in found)


def _guarded(line: str) -> str:
    """A line that roff does not take for a request."""
    return r"\&" + line if line.startswith((".", r"\(aq")) else line


def render(page: Page) -> str:
    """The source of a page, for man and groff."""
    environment = jinja2.Environment(  # noqa: S701  roff, not HTML
        loader=jinja2.FileSystemLoader(Path(__file__).parent), trim_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {"literal": _literal, "prose": _prose, "verbatim": _verbatim, "paragraphs": _paragraphs}
    template = environment.get_template("page.man.j2")
    return template.render(page=page, version=metadata.version("explsched")).rstrip("\n") + "\n"


def main() -> None:
    """Write the pages into the directory that is named on the command line; it is made if it is not there."""
    parser = argparse.ArgumentParser(prog="scripts/manual", description="Write explsched's man pages.")
    parser.add_argument("directory", type=Path, help="where to write them")
    directory: Path = parser.parse_args().directory
    directory.mkdir(parents=True, exist_ok=True)
    for page in pages():
        (directory / f"{page.name}.{page.section}").write_text(render(page), encoding="utf-8")


if __name__ == "__main__":
    main()
