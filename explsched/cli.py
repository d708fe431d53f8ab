"""The root command `sexplsched`, command groups from entry points, and options that commands share.

Only the command that is called is imported.
"""

from __future__ import annotations

import atexit
import gc
import io
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

import click

from explsched import entry_points
from explsched.entry_points import OwnEntry
from explsched.errors import ExplschedError, UnknownNameError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from explsched.strict_yaml import Key

FC = TypeVar("FC", bound=Callable[..., object])
_Name = TypeVar("_Name", bound=Path | str | None)

_EPILOG = """\
Exit status: 0 success, 1 failure, 2 wrong usage.

\b
examples:
  sexplsched status --me
  sexplsched explain 4711
  sexplsched doctor
"""

_INTERRUPTED = 128 + 2  # a shell's exit status for SIGINT

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
config_option = click.option(
    "-f",
    "--config",
    "config_path",
    type=click.Path(path_type=Path),
    envvar="SEXPLSCHED_CONFIG",
    show_envvar=True,
    help="Configuration file.  [default: /etc/explsched/explsched.yaml, if it is there]",
)


_UNITS_S: Mapping[str, float] = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def moment(text: str) -> float:
    """The type of an option: `90m`, `2h` or `7d` ago, `2026-01-31` or `2026-01-31T12:00` local time.

    Gives seconds since 1970, as which any earlier moment counts. Raises `click.BadParameter`.
    """
    ago = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text)
    if ago:
        return max(0.0, time.time() - float(ago[1]) * _UNITS_S[ago[2]])
    if text == "0":
        return 0.0
    try:
        return max(0.0, datetime.fromisoformat(text).astimezone().timestamp())
    except (ValueError, OverflowError):
        raise click.BadParameter(f"{text!r}: accepted are 90m, 2h, 7d, 2026-01-31 and 2026-01-31T12:00") from None


def examples(*command_lines: str) -> str:
    """The end of a command's help: example command lines."""
    return "\n".join(("\b", f"example{'s' * (len(command_lines) > 1)}:", *(f"  {line}" for line in command_lines)))


def print_keys(keys: Iterable[Key]) -> None:
    """List the keys of a YAML file with meaning, accepted values and default."""
    from explsched.tables import Column, lines, room

    rows = ((key.name, f"{key.meaning}; {key.accepted} (default: {key.default})") for key in keys)
    click.echo("\n".join(lines((Column("KEY"), Column("MEANING")), rows, room(), heading=False)))


def keys_option(file: str, keys: Callable[[], Iterable[Key]]) -> Callable[[FC], FC]:
    """The option `--keys` of a command that reads such a file; it is answered without one."""

    def answer(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:  # noqa: FBT001  as click calls it
        if wanted:
            print_keys(keys())
            ctx.exit()

    about = f"List every key of {file} with meaning and default."
    return click.option(
        "--keys",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=answer,
        allow_from_autoenv=False,
        help=about,
    )


def is_stdout(path: Path) -> bool:
    """Whether a file to be written is the standard output, as `-` or by another name: messages then go to stderr."""
    stdout = Path("/dev/stdout")  # not there if it is closed
    return path == Path("-") or (path.exists() and stdout.exists() and path.samefile(stdout))


def input_file(ctx: click.Context, param: click.Parameter, name: _Name) -> _Name:
    """Refuse a file that an option with `output_file` also names. A click callback."""
    if name is not None:
        _keep_apart(ctx, param, Path(name), is_written=False)
    return name


def output_file(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    """Refuse a file in a missing directory, or one of the command's other files, before a long run. A click callback.

    Other files are those of options with `input_file` and `output_file`.
    """
    if path is not None:
        if not path.absolute().parent.is_dir():
            raise click.BadParameter(f"{path}: directory {path.absolute().parent} does not exist")
        _keep_apart(ctx, param, path, is_written=True)
    return path


def _keep_apart(ctx: click.Context, param: click.Parameter, path: Path, *, is_written: bool) -> None:
    """Note a file of this command; raise `UsageError` if it is also another one and one of them is written."""
    files: list[tuple[str, Path, bool]] = ctx.meta.setdefault("explsched.files", [])
    hint = param.get_error_hint(ctx)
    try:
        if path.exists() and not path.is_file():
            return  # a pipe or a device loses nothing
        for other, place, is_other_written in files:
            if (is_written or is_other_written) and _is_same(path, place):
                raise click.UsageError(f"{other} and {hint} are the same file: {path}", ctx)
    except OSError:
        return  # it cannot be looked at, and who opens it says what it is for
    files.append((hint, path, is_written))


def _is_same(one: Path, other: Path) -> bool:
    """Whether two paths lead to one file, which may not exist yet. Raises `OSError`."""
    if one.exists() and other.exists():
        return one.samefile(other)
    return os.path.realpath(one) == os.path.realpath(other)


def alternative(flag: str, parameter: str, value: object, about: str) -> Callable[[FC], FC]:
    """A flag that gives a parameter this value; the parameter is None without any of its flags.

    Two flags of one parameter are wrong usage. No environment variable stands for a flag.
    """

    def choose(ctx: click.Context, _param: click.Parameter, is_given: bool) -> None:  # noqa: FBT001  as click calls it
        ctx.params.setdefault(parameter, None)
        if is_given:
            former = ctx.meta.setdefault(parameter, flag)
            if former != flag:
                raise click.UsageError(f"{former} and {flag}: give one of them")
            ctx.params[parameter] = value

    return click.option(flag, is_flag=True, expose_value=False, callback=choose, allow_from_autoenv=False, help=about)


def own_name() -> str:
    """The name of the user whose process this is; the number of one without an account on this host.

    By the uid, as Slurm's `--me`: LOGNAME may be another user's, as after `runuser`.
    """
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def known_users(names: Iterable[str], seen: Iterable[str]) -> None:
    """Raise `UnknownNameError` for a user who is not in `seen` and has no account on this host."""
    import pwd

    known = set(seen)
    for name in names:
        if name not in known:
            try:
                pwd.getpwnam(name)
            except KeyError:
                raise UnknownNameError("user", name, known) from None


def program_options(command: FC) -> FC:
    """`--version` and `--help` of a program; not by `SEXPLSCHED_VERSION`, which a site's module file may set."""
    command = click.help_option("--help", allow_from_autoenv=False)(command)
    message = "%(prog)s %(version)s"
    version = click.version_option(
        None, "-V", "--version", package_name="explsched", message=message, allow_from_autoenv=False
    )
    return version(command)


class CommandError(ExplschedError):
    """A registered command cannot be loaded."""


class Commands(click.Group):
    """A group of commands. An unknown one is answered with the nearest, and with those that there are."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but for an unknown command."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            ctx.fail(str(UnknownNameError("command", args[0], self.list_commands(ctx))))
        return super().resolve_command(ctx, args)


class RegisteredCommands(Commands):
    """The commands of one entry-point group."""

    def __init__(self, *args: object, entry_point_group: str, **kwargs: object) -> None:
        """`entry_point_group`: where the commands are registered; the rest as for `click.Group`."""
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]  # handed on as they come
        self._group = entry_point_group

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Names of all registered commands, sorted."""
        return sorted({*entry_points.own(self._group), *entry_points.others(self._group)})

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, imported now; None if there is none. Raises `CommandError` if it does not load."""
        entry = entry_points.own(self._group).get(cmd_name) or entry_points.others(self._group).get(cmd_name)
        return None if entry is None else _loaded(entry)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click does, but from the commands' sources: importing all of them takes a second."""
        commands = []
        for name in self.list_commands(ctx):
            help_text = _help_of(entry_points.own(self._group).get(name))
            command = self.get_command(ctx, name) if help_text is None else click.Command(name, help=help_text)
            if command is not None and not command.hidden:
                commands.append((name, command))
        limit = formatter.width - 6 - max((len(name) for name, _ in commands), default=0)
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(limit)) for name, command in commands])


def _help_of(entry: OwnEntry | None) -> str | None:
    """The docstring of one of our commands, without importing it; None if its source does not show it."""
    if entry is None:
        return None
    import ast

    module, _, function = entry.value.partition(":")
    source = Path(__file__).parent.parent.joinpath(*module.split("."))
    path = source / "__init__.py" if source.is_dir() else source.with_suffix(".py")
    functions = ast.parse(path.read_bytes()).body if path.is_file() else []
    found = (one for one in functions if isinstance(one, ast.FunctionDef) and one.name == function)
    return next(map(ast.get_docstring, found), None)


def _loaded(entry: OwnEntry | EntryPoint) -> click.Command:
    try:
        command = entry.load()
    except Exception as error:  # another package's import may raise anything
        raise CommandError(f"command {entry.name!r} ({entry.value}) does not load: {error!r}") from error
    if not isinstance(command, click.Command):
        raise CommandError(f"command {entry.name!r}: {entry.value} is {command!r}, expected a click command")
    return command


@click.group(cls=RegisteredCommands, entry_point_group=entry_points.COMMANDS, epilog=_EPILOG)
@program_options
def root() -> None:
    """See and steer what explsched does with a Slurm cluster."""


def main() -> None:
    """Entry point of `sexplsched`."""
    gc.set_threshold(100_000)  # most commands end before collecting garbage would pay off
    succeeded: list[bool] = []
    atexit.register(_leave_at_once, succeeded)  # the first to register is the last to be called
    try:
        run_command(root, "sexplsched")
    except SystemExit as end:
        if end.code in (None, 0):
            succeeded.append(True)
        raise


def run_command(command: click.Command, name: str) -> None:
    """Run a command as a process and exit: every error is one message, `NAME: error: ...`.

    Wrong usage also prints the usage line, and exits with status 2.
    """
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # A terminal of Latin-1 has neither all users' names nor our own dots where text is cut.
        sys.stdout.reconfigure(errors="replace")
    try:
        sys.exit(command(prog_name=name, auto_envvar_prefix=name.upper(), standalone_mode=False))
    except click.UsageError as error:
        if error.ctx is not None:
            if error.message == error.ctx.get_help():  # a group without a command
                click.echo(error.message, err=True)
                sys.exit(error.exit_code)
            click.echo(f"{error.ctx.get_usage()}\nTry '{error.ctx.command_path} --help' for help.", err=True)
        _fail(name, error.format_message(), error.exit_code)
    except click.ClickException as error:
        _fail(name, error.format_message(), error.exit_code)
    except click.Abort:  # Ctrl-C: the user knows
        sys.exit(_INTERRUPTED)
    except ExplschedError as error:
        _fail(name, str(error), 1)
    except OSError as error:  # such as a full disk below standard output
        _give_up_unwritten()
        _fail(name, ": ".join(filter(None, (error.filename and str(error.filename), error.strerror or str(error)))), 1)


def _give_up_unwritten() -> None:
    """Drop what standard output cannot take: Python would try again as it ends, say so, and end with status 120."""
    for stream in filter(None, (sys.stdout,)):  # None: closed at the start (`>&-`)
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _fail(name: str, message: str, status: int) -> NoReturn:
    click.echo(f"{name}: error: {message}", err=True)
    sys.exit(status)


def _leave_at_once(succeeded: list[bool]) -> None:
    """Exit without freeing every object, which would take a fifth of a short command's time."""
    if succeeded:
        for stream in filter(None, (sys.stdout, sys.stderr)):  # None: closed at the start (`>&-`)
            stream.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
