"""The table is the one place where an option is spelt; everything else is made from it."""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from explsched.job_options import generated
from explsched.job_options.table import LIMIT, OPTIONS, REQUEST, SCHEDULED, SHARE, SHARING, Option
from inference_gateway.sections import KernelSection
from scripts.manual.__main__ import pages, render
from wrappers import sxbatch, sxrun

ROOT = Path(__file__).parents[3]
TABLE = ROOT / "explsched/job_options/table.py"
PRODUCT = (
    *("explsched", "wrappers", "slurm_plugin", "sched_policy", "simulation", "kernel_intercept"),
    *("inference_gateway", "sbatch_templates", "benchmarks", "scripts", "cmake"),
)
TEXTS = (".py", ".c", ".h", ".cpp", ".hpp", ".in", ".lua", ".j2", ".toml", ".txt", ".cmake", "")


def product_files() -> Iterator[Path]:
    for top in PRODUCT:
        yield from (path for path in sorted((ROOT / top).rglob("*")) if path.suffix in TEXTS and path.is_file())


def distinctive_spellings(option: Option) -> Iterator[str]:
    """Spellings that mean nothing else wherever they stand."""
    yield from (option.variable, option.spank_name)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_an_option_is_spelt_in_one_place(option: Option) -> None:
    spellings = re.compile("|".join(rf"(?<![\w-]){re.escape(text)}(?![\w-])" for text in distinctive_spellings(option)))
    found = {path for path in product_files() if spellings.search(path.read_text(errors="replace"))}
    assert found <= {TABLE}


def literals(path: Path) -> Iterator[str]:
    """String literals of a Python file, without docstrings."""
    tree = ast.parse(path.read_text())
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare:
            yield node.value


READERS = [ROOT / "wrappers" / f"{name}.py" for name in ("share_options", "sxbatch")]
READERS += [ROOT / "explsched/job_options/command_line.py", ROOT / "slurm_plugin/job_options.py"]


@pytest.mark.parametrize("path", READERS, ids=lambda path: path.name)
def test_readers_take_keys_from_the_table(path: Path) -> None:
    assert not {option.key for option in SCHEDULED} & set(literals(path))


@pytest.mark.parametrize("path", sorted((ROOT / "wrappers").glob("*.py")), ids=lambda path: path.name)
def test_commands_take_flags_from_the_table(path: Path) -> None:
    others = {"sxreport.py": {"--metric"}}.get(path.name, set())  # of a value that is reported
    assert {option.flag for option in OPTIONS} & set(literals(path)) <= others


def test_native_sources_take_names_from_the_header() -> None:
    names = {f'"{text}' for option in SCHEDULED for text in (option.key, *option.kind.choices) if len(text) > 1}
    for path in sorted((ROOT / "slurm_plugin/spank").glob("*.[ch]")):
        assert not [name for name in names if name in path.read_text()]


def test_names_are_unlike() -> None:
    spellings = [text for option in OPTIONS for text in (option.name, *distinctive_spellings(option))]
    assert len(set(spellings)) == len(spellings)


def test_commands_have_the_options_of_the_table() -> None:
    def flags(parser: argparse.ArgumentParser) -> set[str]:
        return set(re.findall(r"--[a-z-]+", parser.format_help()))

    assert {option.flag for option in SCHEDULED} <= flags(sxbatch.options_parser())
    assert {option.flag for option in SHARING} <= flags(sxrun.options_parser())


VALUES = {
    "params": "lr=0.1",
    "checkpoint": "USR1",
    "elastic": "1-8",
    "stages": "110/60/45/5",
    "request": "0.3",
    "limit": "0.7",
    "memory": "20G",
}


def test_an_option_is_of_the_commands_that_the_docs_name() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (`sx[^|]*) \|", (ROOT / "docs/researcher.md").read_text(), re.MULTILINE)
    assert [name for name, _ in rows] == [option.name for option in OPTIONS]
    for option, (_, commands) in zip(OPTIONS, rows, strict=True):
        words = [option.flag]
        if option.metavar:
            words.append(VALUES.get(option.name) or next(iter(option.kind.choices), "x"))
        takers = []
        for parser in (sxbatch.options_parser(), sxrun.options_parser()):
            with suppress(SystemExit, ValueError):
                parser.parse_args([*words, *(["--", "true"] if parser.prog == "sxrun" else [])])
                takers.append(f"`{parser.prog}`")
        assert ", ".join(takers) == commands, option.name


def test_yaml_has_the_names_and_values_of_the_table() -> None:
    assert set(KernelSection.__struct_fields__) >= {option.yaml_key for option in (SHARE, REQUEST, LIMIT)}
    accepted = {value for part in get_args(get_type_hints(KernelSection)["share"]) for value in get_args(part)}
    assert accepted == set(SHARE.kind.choices)


def test_the_docs_show_the_present_table() -> None:
    page = (ROOT / "docs/researcher.md").read_text()
    assert generated.with_table(page) == page, "run python -m explsched.job_options.generated docs docs/researcher.md"
    with pytest.raises(ValueError, match="no lines"):
        generated.with_table("a page")


def test_the_manual_explains_every_option() -> None:
    (found,) = (page for page in pages() if page.name == "explsched-options")
    page = render(found).replace(r"\-", "-").replace(r"\:", "")
    for option in OPTIONS:
        assert f"\n\\fB{option.name}\\fR\n{option.help[:1].upper()}{option.help[1:]}." in page.replace(r"\(aq", "'")


def test_the_header_is_written_only_when_it_differs(tmp_path: Path) -> None:
    path = tmp_path / "generated" / "job_options.h"
    generated.main(["header", str(path)])
    before = path.stat()
    generated.main(["header", str(path)])
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    path.write_text("old")
    generated.main(["header", str(path)])
    assert path.read_text() == generated.header()


def test_only_the_standard_library_is_imported_in_jobs() -> None:
    modules = ("command_line", "comment", "generated")
    code = "import " + ", ".join(f"explsched.job_options.{name}" for name in modules)
    environment = {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-S", "-c", code], env=environment, check=True)  # -S: no site-packages


def test_the_table_is_cheap_to_import() -> None:
    """Every training pays for it: no modules that read packages, sources or addresses."""
    code = "import sys, explsched.job_options.table; print(*sys.modules)"
    argv = [sys.executable, "-S", "-c", code]
    loaded = subprocess.run(argv, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True).stdout
    assert not {"dataclasses", "inspect", "urllib.parse", "argparse", "importlib.metadata"} & set(loaded.split())
