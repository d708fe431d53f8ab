"""What the distribution says of itself."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_every_package_of_the_wheel_is_typed() -> None:
    packages = PROJECT["tool"]["scikit-build"]["wheel"]["packages"]
    assert len(packages) == 8
    assert [name for name in packages if not (ROOT / name / "py.typed").exists()] == []


def test_every_entry_point_leads_to_a_file_and_a_name() -> None:
    groups = PROJECT["project"]["entry-points"] | {"scripts": PROJECT["project"]["scripts"]}
    for name, target in ((name, target) for entries in groups.values() for name, target in entries.items()):
        module, _, attribute = target.partition(":")
        path = ROOT / module.replace(".", "/")
        text = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
        defined = (f"\ndef {attribute}(", f"\nclass {attribute}(", f"\n{attribute} = ", f"\n{attribute}: ")
        assert any(one in f"\n{text}" for one in defined), (name, target)


def evaluated(node: ast.AST) -> Iterator[ast.AST]:
    """What runs: all but annotations, which no module of ours evaluates."""
    yield node
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from evaluated(child)


def test_the_oldest_click_that_is_declared_can_run_the_commands() -> None:
    assert "click>=8.2" in PROJECT["project"]["dependencies"], "8.1 cannot choose among integers: profile --step"
    generic = [
        f"{path}: {ast.unparse(node)}"
        for package in PROJECT["tool"]["scikit-build"]["wheel"]["packages"]
        for path in (ROOT / package).rglob("*.py")
        for node in evaluated(ast.parse(path.read_text()))
        if isinstance(node, ast.Subscript) and ast.unparse(node.value).startswith("click.")
    ]
    assert generic == [], "click's classes are generic since 8.4 alone"
