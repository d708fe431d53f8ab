"""Readiness without HTTP: whoever has registered is ready, but those a test names."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference_gateway.control import observations
from tests.inference_gateway.control.doubles import Rig

UNREADY: set[str] = set()


@pytest.fixture(autouse=True)
def _answers(monkeypatch: pytest.MonkeyPatch) -> None:
    UNREADY.clear()
    monkeypatch.setattr(
        observations, "ready", lambda question, _context: question.name not in UNREADY and "*" not in UNREADY
    )


@pytest.fixture
def unready() -> set[str]:
    """Names of replicas that do not answer; `*` for all."""
    return UNREADY


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)
