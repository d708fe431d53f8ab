"""The documentation as a site: built without a warning, and nothing of it comes from elsewhere."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not all(importlib.util.find_spec(name) for name in ("mkdocs", "material", "mkdocstrings")):
        pytest.skip("mkdocs is not installed (scripts/install docs)")
    directory = tmp_path_factory.mktemp("site")
    argv = [str(ROOT / "scripts" / "docs"), "--site-dir", str(directory)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return directory


def test_the_api_reference_has_what_the_front_door_exports(site: Path) -> None:
    import explsched

    page = (site / "docs" / "api.html").read_text()
    for name in explsched.__all__:
        assert f'id="explsched.{name}"' in page


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert not re.findall(
            r"<(?:script|link rel=\"stylesheet\"|img)[^>]+(?:src|href)=\"https?:[^\"]+", page.read_text()
        )


def test_every_page_is_in_the_navigation(site: Path) -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    for page in [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        assert str(page.relative_to(ROOT)) in text


def test_files_that_the_architecture_page_names_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = re.findall(r"`((?:[a-z_]+/)+[\w.]+\.(?:py|cpp|hpp|j2|lua))`", text)
    assert len(named) > 30
    assert [name for name in named if not (ROOT / name).exists()] == []
