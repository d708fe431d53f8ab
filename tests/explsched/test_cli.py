"""The root command: what it lists, and what that costs."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from explsched.cli import moment, root
from slurm_plugin import daemon


def test_help_lists_commands_with_the_texts_that_the_commands_have() -> None:
    lines = CliRunner().invoke(root, ["--help"]).output.splitlines()
    shown = dict(line.strip().partition(" ")[::2] for line in lines)
    context = click.Context(root)
    for name in root.list_commands(context):
        command = root.get_command(context, name)
        assert command is not None
        whole = command.get_short_help_str(1000)
        assert shown[name]
        assert whole.startswith(shown[name].strip().removesuffix("..."))


def test_help_imports_no_command() -> None:
    code = (
        "import sys; from explsched.cli import root; root(['--help'], standalone_mode=False); "
        "print([name for name in ('numpy', 'yaml', 'slurm_plugin.config') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_command_that_ends_well_leaves_nothing_unwritten_and_undone() -> None:
    code = (
        "import atexit, sys, threading, time, click\n"
        "from explsched import cli\n"
        "@click.command()\n"
        "def late():\n"
        "    atexit.register(lambda: print('registered'))\n"
        "    threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()\n"
        "    print('x' * 200_000)\n"
        "cli.root, sys.argv = late, ['sexplsched']\n"
        "cli.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["x" * 200_000, "thread", "registered"] and not done.stderr
    for argv, status in ((["--version"], 0), (["no-such-command"], 2)):
        code = f"import sys; from explsched import cli; sys.argv = ['sexplsched', *{argv!r}]; cli.main()"
        assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == status


def test_every_error_has_the_same_prefix() -> None:
    for command, argv, status in (
        ("sexplsched", ["no-such-command"], 2),
        ("sexplsched", ["status", "--no-such-option"], 2),
        ("sexplsched", ["config", "check", "-f", "/nowhere.yaml"], 1),
        ("sexplschedd", ["--once", "-f", "/nowhere.yaml"], 1),
        ("sexplschedd", ["--no-such-option"], 2),
    ):
        module = {"sexplsched": "explsched.cli", "sexplschedd": "slurm_plugin.daemon"}[command]
        done = subprocess.run([sys.executable, "-m", module, *argv], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (status, "")
        assert done.stderr.splitlines()[-1].startswith(f"{command}: error: ")
        assert "Error:" not in done.stderr


def test_output_that_cannot_be_written_is_told_in_a_line() -> None:
    with Path("/dev/full").open("w") as full:
        argv = [sys.executable, "-m", "explsched.cli", "config", "keys"]
        done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "sexplsched: error: No space left on device\n")


def test_names_that_the_terminal_has_no_characters_for_end_no_command() -> None:
    """As in a locale with ISO-8859-1."""
    told = "click.command()(lambda: click.echo('caf\\xe9 \\u65e5 \\u2026'))"
    code = f"import click; from explsched.cli import run_command; run_command({told}, 'x')"
    foreign = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=foreign, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"caf\xe9 ? ?\n", b"")


def test_the_configuration_and_its_keys_are_told_as_json(tmp_path: Path) -> None:
    (tmp_path / "explsched.yaml").write_text("interval_s: 7")

    def told(*argv: str) -> Any:
        words = [sys.executable, "-m", "explsched.cli", "config", *argv, "--json"]
        return json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)

    assert told("show", "-f", str(tmp_path / "explsched.yaml"))["interval_s"] == 7
    assert {"interval_s", "state.socket"} <= {key["name"] for key in told("keys")}


@pytest.mark.parametrize("text", ["99999999999999d", f"{'9' * 400}w", "0001-01-02", "0"])
def test_moments_before_1970_count_as_its_begin(text: str) -> None:
    assert moment(text) == 0.0


def test_a_moment_that_no_clock_shows_is_wrong_usage() -> None:
    with pytest.raises(click.BadParameter, match="accepted are 90m, 2h, 7d, 2026-01-31 and 2026-01-31T12:00"):
        moment("0001-01-01T00:00+14:00")


def commands(command: click.Command, *words: str) -> Iterator[tuple[str, click.Command]]:
    yield " ".join(words), command
    if not isinstance(command, click.Group):
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from commands(found, *words, name)


def test_each_command_has_an_example_that_its_options_accept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ncu.csv").touch()
    known = dict(commands(root, "sexplsched"))
    assert len(known) > 50
    for name, command in known.items():
        lines = re.findall(r"^ (.*\bsexplsched .*)$", command.epilog or "", re.MULTILINE)
        examples = [
            typed for line in lines for typed in re.findall(r"(?:^|[ (])(sexplsched .*?)(?= &&| \|| 2?>|\)|$)", line)
        ]
        assert any(typed.startswith(name) for typed in examples), f"{name} --help has no example"
        for typed in examples:
            try:
                parsed(root, shlex.split(typed)[1:])
            except click.exceptions.Exit:  # an option such as --keys, which answers at once
                assert "--" in typed


@pytest.mark.parametrize(
    "typed",
    [
        "sexplschedd --dry-run --once",
        "sexplschedd --serve-state --dry-run",
        "sexplsched gateway up -s services.yaml --dry-run --foreground",
        "sexplsched gateway key ada -s services.yaml --list --revoke",
        "sexplsched gateway usage -s services.yaml --csv --json",
        "sexplsched report --json --html",
        "sexplsched sweep show digits --csv --json",
        "sexplsched cluster up --dir cluster --slurm-only --no-daemon",
    ],
)
def test_two_flags_of_which_one_counts_are_refused(typed: str) -> None:
    program, *words = shlex.split(typed)
    first, second = (word for word in words if word.startswith("--") and word != "--dir")
    with pytest.raises(click.UsageError, match=f"^{first} and {second}: give one of them$"):
        parsed({"sexplsched": root, "sexplschedd": daemon.command}[program], words)


def test_no_option_silently_replaces_another() -> None:
    for name, command in (*commands(root, "sexplsched"), ("sexplschedd", daemon.command)):
        names = [option.name for option in command.params if isinstance(option, click.Option)]
        assert sorted(names, key=str) == sorted(set(names), key=str), name


@pytest.mark.parametrize("program", ["sexplsched", "sexplschedd"])
def test_the_environment_of_a_site_asks_for_no_version_and_no_mode(program: str) -> None:
    names = ("VERSION", "HELP", "MODE", "ONCE", "POLICIES_KEYS")
    set_by_site = {f"{program.upper()}_{name}": "1" for name in names}
    argv = {"sexplsched": ["explsched.cli", "policies"], "sexplschedd": ["slurm_plugin.daemon", "--config=/nowhere"]}
    words = [sys.executable, "-m", *argv[program]]
    done = [
        subprocess.run(words, capture_output=True, text=True, env={**os.environ, **more}, check=False)
        for more in ({}, set_by_site)
    ]
    assert (done[1].returncode, done[1].stdout, done[1].stderr) == (done[0].returncode, done[0].stdout, done[0].stderr)


def parsed(command: click.Command, words: list[str]) -> None:
    """Let click take the command line apart, and run nothing. Raises `click.UsageError`."""
    context = click.Context(command)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(context, words[0])
        assert found is not None, words
        command, words = found, words[1:]
    with command.make_context(command.name, words, parent=context):
        pass


def test_an_unknown_command_of_a_group_is_answered_with_those_that_there_are() -> None:
    done = subprocess.run([sys.executable, "-m", "explsched.cli", "trace", "sumary"], capture_output=True, text=True)
    (*_, error) = done.stderr.splitlines()
    assert error.startswith("sexplsched: error: no command 'sumary'; did you mean 'summary'? (known: ")
    alone = subprocess.run([sys.executable, "-m", "explsched.cli", "cluster"], capture_output=True, text=True)
    assert (alone.returncode, alone.stderr.count("Usage: "), "error" in alone.stderr) == (2, 1, False)


def test_help_names_the_variable_of_the_configuration() -> None:
    assert "SEXPLSCHED_CONFIG]" in " ".join(CliRunner().invoke(root, ["status", "--help"]).output.split())


@pytest.mark.parametrize(
    "command", ["colocate --instances 3", "trace summary TRACE", "simulate --trace TRACE --cluster 1x1 --policy srsf"]
)
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-"])
def test_a_closed_standard_stream_ends_no_command(command: str, closed: str, tmp_path: Path) -> None:
    (tmp_path / "TRACE").write_text("job_id,submit_s,gpus,run_s\n1,0,1,60\n")
    program = Path(sys.executable).parent / "sexplsched"
    script = f"exec {program} {command} {closed}"
    done = subprocess.run(["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
