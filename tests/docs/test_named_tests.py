"""Tests that a page names are there, under these names."""

from __future__ import annotations

import ast
import re

import pytest

from tests.docs.blocks import PAGES, ROOT

NAMED = sorted(
    {(page.name, *found) for page in PAGES for found in re.findall(r"`(tests/\S+?\.py)(?:::(\w+))?`", page.read_text())}
)


def test_some_are_named() -> None:
    assert len(NAMED) > 15


@pytest.mark.parametrize(("page", "file", "test"), NAMED)
def test_a_named_test_exists(page: str, file: str, test: str) -> None:
    path = ROOT / file
    assert path.exists(), f"{page} names {file}"
    functions = {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}
    assert not test or test in functions, f"{page} names {file}::{test}"
