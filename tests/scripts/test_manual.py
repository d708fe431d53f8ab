"""The man pages are complete, and the programs that set them have nothing to complain about."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from explsched import strict_yaml
from explsched.cli import root
from scripts.manual.__main__ import WRAPPERS, Entry, Page, Part, pages, render
from slurm_plugin import config, daemon

PAGES = {f"{page.name}.{page.section}": render(page) for page in pages()}
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
def test_man_has_no_complaint_about_a_page(name: str) -> None:
    shown = seen(PAGES[name], 80).splitlines()
    others = {"explsched.yaml.5": ("KEYS", "FILES"), "explsched-options.7": ("OPTIONS",)}
    of_commands = others.get(name, ("SYNOPSIS", "OPTIONS", "EXIT STATUS"))
    for section in ("NAME", "DESCRIPTION", "EXAMPLES", "SEE ALSO", *of_commands):
        assert section in shown


def test_every_program_and_every_command_of_sexplsched_has_a_page() -> None:
    programs = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["scripts"]
    wanted = {f"{name}.{8 if name == 'sexplschedd' else 1}" for name in programs}
    wanted |= {f"sexplsched-{name}.1" for name in root.list_commands(click.Context(root))}
    assert set(PAGES) == {*wanted, "explsched.yaml.5", "explsched-options.7"}


def test_every_command_of_a_command_and_its_options_are_explained() -> None:
    page = read("sexplsched-trace.1")
    for name in ("convert", "generate", "summary"):
        assert f'.SS "sexplsched trace {name}"' in page
    assert "--median-run" in page


def test_every_key_of_the_configuration_is_explained() -> None:
    page = read("explsched.yaml.5")
    for key in strict_yaml.keys(config.Config):
        meaning = key.meaning.replace("`", "")  # bold, in the page
        assert f"\n{key.name}\n{meaning}. Accepted: {key.accepted}. Default: {key.default}\n" in page
    assert "one of auto, pyslurm, cli. Default: auto" in page
    assert "a whole number from 0 to 1,000 or null. Default: null" in page
    assert "a path. Default: /var/spool/explsched/progress" in page


def test_every_option_of_a_wrapper_is_explained() -> None:
    for name, parser in WRAPPERS.items():
        page = read(f"{name}.1")
        options = set(re.findall(r"^  +(--?[A-Za-z-]+)", parser.format_help(), flags=re.MULTILINE))
        assert len(options) > 2
        assert [option for option in options if option not in page] == []


def test_every_variable_that_jobs_commands_read_is_explained() -> None:
    sources = "".join(path.read_text() for path in sorted((REPOSITORY / "wrappers").glob("*.py")))
    known = "".join(read(f"{name}.1") for name in WRAPPERS)
    for variable in set(re.findall(r'"(EXPLSCHED_\w+)"', sources)):
        assert f"\n{variable}\n" in known, variable


def test_variables_that_the_manual_promises_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\nSEXPLSCHEDD_LOG_LEVEL\n" in read("sexplschedd.8")
    monkeypatch.setenv("SEXPLSCHEDD_LOG_LEVEL", "loud")
    done = CliRunner().invoke(daemon.command, [], auto_envvar_prefix="SEXPLSCHEDD")
    assert done.exit_code == 2
    assert "'loud'" in done.output


def test_the_example_is_the_default_configuration(tmp_path: Path) -> None:
    example = config.example()
    assert config.parse(example, tmp_path) == config.Config()
    inner = re.sub(r"^#", "", example, flags=re.MULTILINE)
    assert len([line for line in inner.splitlines() if re.match(r" *\w+:", line)]) > len(
        list(strict_yaml.keys(config.Config))
    )
    assert config.parse(inner, tmp_path) == config.Config()


def test_what_looks_like_a_request_or_an_escape_is_text() -> None:
    description = ".SH not a heading\n\n'so neither\n\n\b\n.kept\\n \"as\" it's\n  -is ~^`"
    groups = (
        Part("SYNOPSIS", synopsis="odd --it's"),
        Part("DESCRIPTION", description),
        Part("OPTIONS", entries=(Entry("--words", "a `--set`, " + ",".join(f"word{i}" for i in range(30))),)),
        Part("EXAMPLES", example=".odd\n\n'odd"),
    )
    shown = seen(render(Page("odd", 1, "An odd page", groups, (("even", 1),))), 60)
    for text in (
        "odd - an odd page",
        "odd --it's",
        ".SH not a heading",
        "'so neither",
        '.kept\\n "as" it\'s',
        "  -is ~^`",
        "a --set,",
        ".odd\n\n       'odd",
        "even(1)",
    ):
        assert text in shown, text


def test_a_wrappers_epilog_is_read_by_section() -> None:
    page = read("sxbatch.1")
    assert re.search(r"\.SH EXIT STATUS\nsbatch's, or 2 for an error of sxbatch\.\n", page)
    assert re.search(r"\.SH ENVIRONMENT\n(\.TP\n\w+\n.+\n)+\.SH EXAMPLES\n\.EX\nsxbatch --sweep", page)
