"""The manual is complete, and the programs that set it have nothing to complain about."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from explsched.cli.main import root
from slurm_plugin import config, config_keys, daemon
from slurm_plugin.manual import book, completion, epilog, roff
from slurm_plugin.manual.commands import commands
from slurm_plugin.manual.page import Entry, Page

PAGES = book.render_all()
REPOSITORY = Path(__file__).parents[2]


def read(name: str) -> str:
    """A page as a reader sees it, without typesetting."""
    return re.sub(r"\\f[BR]|\\&|\\:", "", PAGES[name]).replace(r"\-", "-").replace(r"\(aq", "'").replace(r"\(ti", "~")


def seen(source: str, width: int) -> str:
    if shutil.which("man") is None:
        pytest.skip("man is not installed")
    done = subprocess.run(
        ["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-"],
        input=source,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "MANWIDTH": str(width), "LC_ALL": "C.UTF-8", "MANPAGER": "cat"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return re.sub(r".\x08|\x1b\[[0-9;]*m", "", done.stdout)  # bold, on paper and on a screen


@pytest.mark.parametrize("name", sorted(PAGES))
def test_man_has_no_complaint(name: str) -> None:
    shown = seen(PAGES[name], 80).splitlines()
    others = {"explsched.yaml.5": ("KEYS", "FILES"), "explsched-options.7": ("OPTIONS",)}
    of_commands = others.get(name, ("SYNOPSIS", "OPTIONS", "EXIT STATUS"))
    for section in ("NAME", "DESCRIPTION", "EXAMPLES", "SEE ALSO", *of_commands):
        assert section in shown


def test_every_command_has_a_page() -> None:
    context = click.Context(root)
    wanted = {f"sexplsched-{name}.1" for name in root.list_commands(context)}
    assert set(PAGES) == wanted | {
        "sexplsched.1",
        "sexplschedd.8",
        "sxbatch.1",
        "sxrun.1",
        "sxreport.1",
        "explsched.yaml.5",
        "explsched-options.7",
    }


def test_every_command_of_a_command_and_its_options_are_explained() -> None:
    page = read("sexplsched-trace.1")
    for name in ("convert", "generate", "summary"):
        assert f'.SS "sexplsched trace {name}"' in page
    assert "--median-run" in page


def test_every_key_is_explained() -> None:
    page = read("explsched.yaml.5")
    for key in config_keys.all_keys():
        meaning = key.meaning.replace("`", "")  # bold, in the page
        assert f"\n{key.name}\n{meaning}. Accepted: {key.accepted}. Default: {key.default}\n" in page
    assert "one of auto, pyslurm, cli. Default: auto" in page
    assert "a whole number from 0 to 1,000 or null. Default: null" in page
    assert "a path. Default: /var/spool/explsched/progress" in page


def test_every_option_of_a_wrapper_is_explained() -> None:
    for name, command in commands().items():
        if isinstance(command, argparse.ArgumentParser):
            for action in command._actions:
                for option in action.option_strings:
                    assert option in read(f"{name}.1")


def test_every_variable_that_jobs_commands_read_is_explained() -> None:
    sources = "".join(path.read_text() for path in sorted((REPOSITORY / "wrappers").glob("*.py")))
    known = "".join(read(f"{name}.1") for name in ("sxbatch", "sxrun", "sxreport"))
    for variable in set(re.findall(r'"(EXPLSCHED_\w+)"', sources)):
        assert f"\n{variable}\n" in known, variable


def test_variables_that_the_manual_promises_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\nSEXPLSCHEDD_LOG_LEVEL\n" in read("sexplschedd.8")
    monkeypatch.setenv("SEXPLSCHEDD_LOG_LEVEL", "loud")
    done = CliRunner().invoke(daemon.command, [], auto_envvar_prefix="SEXPLSCHEDD")
    assert done.exit_code == 2
    assert "'loud'" in done.output


def test_the_example_is_the_default_configuration(tmp_path: Path) -> None:
    example = config_keys.example()
    assert config.parse(example, tmp_path) == config.Config()
    inner = re.sub(r"^#", "", example, flags=re.MULTILINE)
    assert len([line for line in inner.splitlines() if re.match(r" *\w+:", line)]) > len(list(config_keys.all_keys()))
    assert config.parse(inner, tmp_path) == config.Config()


def test_what_looks_like_a_request_or_an_escape_is_text() -> None:
    page = Page(
        "odd",
        1,
        "An odd page",
        synopsis="odd --it's",
        description=".SH not a heading\n\n'so neither\n\n\b\n.kept\\n \"as\" it's\n  -is ~^`",
        options=(Entry("--words", "a `--set`, " + ",".join(f"word{i}" for i in range(30))),),
    )
    shown = seen(roff.render(page, "1"), 60)
    for text in (
        "odd - an odd page",
        ".SH not a heading",
        "'so neither",
        '.kept\\n "as" it\'s',
        "  -is ~^`",
        "a --set,",
    ):
        assert text in shown, text


def test_epilogs_are_read_by_section() -> None:
    found = epilog.read(
        "\b\nSome words.\n\nExit status: 0, always.\n\n\b\nenvironment:\n  A_B  of a\n       and b\n  C  c\n"
    )
    assert (found.rest, found.exit_status, found.examples) == ("Some words.", "0, always.", "")
    assert found.variables == (Entry("A_B", "of a and b"), Entry("C", "c"))
    assert epilog.read(None) == epilog.Epilog()


def complete(script: str, function: str, *words: str) -> list[str]:
    """What bash offers for the last of these words."""
    asked = f'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); {function}; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(
        ["bash", "-uc", f"{script}\n{asked}", "bash", *words], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes_options_and_choices_of_wrappers() -> None:
    script = completion.scripts()["sxbatch"]
    assert complete(script, "_sxbatch", "sxbatch", "--swe") == ["--sweep"]
    assert complete(script, "_sxbatch", "sxbatch", "--direction", "m") == ["min", "max"]
    assert complete(script, "_sxbatch", "sxbatch", "--sweep", "--st") == []
    assert complete(script, "_sxbatch", "sxbatch", "--", "--swe") == []


def test_every_command_is_completed() -> None:
    scripts = completion.scripts()
    assert set(scripts) == set(commands())
    for name, script in scripts.items():
        done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), name
        assert re.search(rf"complete .*-F \w+ {name}$", script, re.MULTILINE)
