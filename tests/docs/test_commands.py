"""Every command line of the documentation runs as it is written, or says in the same place why it is not run."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from explsched import strict_yaml
from explsched.cli import root
from explsched.strict_yaml import Section
from slurm_plugin.config import Config
from slurm_plugin.devcluster import ClusterSpec, ProductState, up
from slurm_plugin.devcluster.machine import reserved
from slurm_plugin.sweeps.search_file import SearchFile
from tests.docs.blocks import PAGES, ROOT, Block, blocks, commands
from tests.docs.sacct_history import history
from tests.docs.shell import Shell

README = ROOT / "README.md"
SPEC = ClusterSpec(nodes=4, gpus_per_node=8, shards_per_node=32, product=ProductState.RUNNING)
EVENTS = """\
{"Time": 0, "Action": "start", "Instance": {"service_name": "bert", "type": "inference", "gpu_num": 1, \
"sm_requests": 0.1, "sm_limits": 0.2, "memory": [5]}}
{"Time": 60, "Action": "delete", "Instance": {"service_name": "bert", "type": "inference", "gpu_num": 1, \
"sm_requests": 0.1, "sm_limits": 0.2, "memory": [5]}}
"""
LANGUAGES = {"sh", "python", "yaml", "json", "ini", "text", ""}


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def runnable(page: Path) -> list[Block]:
    return [block for block in commands(page) if block.reason is None]


@pytest.fixture
def reader(place: Path, needs_haproxy: None) -> Iterator[Shell]:
    """A shell in a directory with what a checkout has, and with the files that pages speak of."""
    (place / "work").mkdir()
    work = place / "work"
    shutil.copytree(ROOT / "examples", work / "examples")
    (work / "train.sh").write_text("#!/bin/bash\nexec sxrun -- python3 train.py\n")
    shutil.copy(ROOT / "examples" / "quickstart" / "train.py", work)
    (work / "events.jsonl").write_text(EVENTS)
    (work / "history.txt").write_text(history(300, seed=1))
    (work / "requests.csv").write_text("arrival_s,service_s\n" + "".join(f"{t * 0.2:.1f},2.0\n" for t in range(3000)))
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "SEXPL", "EXPL"))}
    environment |= {"HOME": str(place), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with reserved(1) as (port,):  # HAProxy shares it
        services = work / "examples" / "services.yaml"
        services.write_text(services.read_text().replace("8080", str(port)))
        with Shell(work, environment) as shell:
            yield shell


@pytest.fixture(scope="session")
def needs_haproxy() -> None:
    """Skip where pages about the gateway cannot run."""
    for program in ("haproxy", "curl"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (scripts/install)")


def typed(block: Block, place: Path) -> str:
    """The block; only the cluster's directory is another one."""
    return block.text.replace("/tmp/explsched", str(place / "c"))  # noqa: S108  what the page says


@pytest.mark.slurm
def test_the_readme_typed_to_the_letter(reader: Shell, place: Path) -> None:
    """A newcomer sees progress, utility and reasons, and the cluster is gone in the end."""
    session = runnable(README)
    watched = next(at for at, block in enumerate(session) if "sexplsched status" in block.text)
    for block in session[: watched + 1]:
        reader.type(typed(block, place))
    began_s = time.monotonic()
    while not all(_seen(jobs := json.loads(reader.type("sexplsched status --json 2>/dev/null"))["jobs"])):
        assert time.monotonic() < began_s + 60, jobs
        time.sleep(0.5)
    notes = [line for line in reader.type("sexplsched status 2>&1").splitlines() if line.startswith("sexplsched:")]
    assert all("as the daemon saw it" in note for note in notes)  # a daemon runs
    for block in session[watched + 1 :]:
        reader.type(typed(block, place))
    assert not (place / "c").exists()


def _seen(jobs: list[dict[str, object]]) -> tuple[bool, bool, bool]:
    """Whether some job shows progress, some its utility, and all why they are where they are."""
    steps = [job for job in jobs if job["step"] != "-"]
    return bool(steps), any(job["utility"] is not None for job in steps), all(job["reason"] for job in jobs)


@pytest.mark.slurm
@pytest.mark.parametrize("page", [page for page in PAGES if page != README and runnable(page)], ids=named)
def test_command_lines_of_a_page_run(page: Path, reader: Shell, place: Path) -> None:
    cluster = up(SPEC, place / "c")
    reader.type("".join(f"export {key}={value}\n" for key, value in cluster.env().items()))
    for block in runnable(page):
        reader.type(typed(block, place))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_blocks_have_a_language_that_says_whether_they_are_commands(page: Path) -> None:
    for block in blocks(page):
        assert block.language in LANGUAGES
        if block.language == "":
            assert not re.search(r"^(sexplsched|sxbatch|sxrun|scripts/)", block.text, re.MULTILINE), block.text


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_that_are_not_run_have_a_reason(page: Path) -> None:
    for block in commands(page):
        assert block.reason is None or len(block.reason.split()) >= 3
    text = page.read_text()
    assert len(re.findall("^<!-- not run", text, re.MULTILINE)) == len(
        [block for block in commands(page) if block.reason]
    ), "stands elsewhere"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_command_that_is_named_exists(page: Path) -> None:
    """Also in sentences and in blocks that are not run."""
    context = click.Context(root)
    for name, more in re.findall(r"(?:`|^|\n|&& )sexplsched ([a-z-]+)(?: ([a-z][a-z-]*))?", page.read_text()):
        command = root.get_command(context, name)
        assert command is not None, f"sexplsched {name}"
        if isinstance(command, click.Group) and more and not command.invoke_without_command:
            assert command.get_command(context, more) is not None, f"sexplsched {name} {more}"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    for target, section in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", page.read_text()):
        if not target.startswith("https://"):
            assert (page.parent / target).exists(), target
            assert not section or section in _sections(page.parent / target if target else page), f"{target}#{section}"


def test_pages_and_sections_that_messages_name_exist() -> None:
    sections = {named(page): _sections(page) for page in PAGES}
    found = {
        (str(path.relative_to(ROOT)), page, section)
        for room in (
            "explsched",
            "inference_gateway",
            "kernel_intercept",
            "scripts",
            "simulation",
            "slurm_plugin",
            "wrappers",
        )
        for path in (ROOT / room).rglob("*.py")
        for page, section in re.findall(r"\b(docs/[\w/-]+\.md)(?:#([\w-]+))?", path.read_text())
    }
    assert len(found) > 5
    assert not [(path, page) for path, page, _ in found if page not in sections]
    assert not [(path, page, section) for path, page, section in found if section and section not in sections[page]]


def _sections(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MkDocs make them."""
    headings = re.findall(r"^#+ +(.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_results_and_modules_that_are_named_exist(page: Path) -> None:
    text = page.read_text()
    for path in re.findall(r"\bbenchmarks/[\w/]+\.(?:json|py)", text):
        assert (ROOT / path).exists(), path
    for module in re.findall(r"python3? -m (benchmarks[\w.]*)", text):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module


@pytest.mark.parametrize(("page", "section"), [("configuration.md", Config), ("sweeps.md", SearchFile)])
def test_a_page_has_every_key_as_the_code_has_it(page: str, section: type[Section]) -> None:
    head = ["| key | default | accepted | meaning |", "|---|---|---|---|"]
    rows = [f"| `{key.name}` | `{key.default}` | {key.accepted} | {key.meaning} |" for key in strict_yaml.keys(section)]
    assert "\n".join([*head, *rows, "", ""]) in f"{(ROOT / 'docs' / page).read_text()}\n"
