"""Files for the readers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Writer = Callable[[str | bytes], Path]


@pytest.fixture
def file(tmp_path: Path) -> Writer:
    """Writes a text, or bytes as they are, into a file and gives its path."""

    def write(content: str | bytes, name: str = "trace.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write
