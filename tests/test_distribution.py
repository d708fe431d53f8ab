"""What the distribution says of itself."""

from __future__ import annotations

import tomllib
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
