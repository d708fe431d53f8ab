"""What the benchmark of the gateway says where it cannot run."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from benchmarks.gateway import cpu


def test_a_missing_wrk_is_named_with_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(click.ClickException, match="wrk.*apt-get install wrk"):
        cpu.measure(tmp_path, 1, 1)
