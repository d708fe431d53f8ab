"""A shell in which a reader types the commands of a page, one block after another."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

_END = "end-of-block"


class Shell:
    """bash that ends at the first command that fails. `directory` is where the reader is."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self._directory = directory
        self._bash = subprocess.Popen(
            ["bash", "-eu", "-o", "pipefail"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env=dict(environment),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bash.kill()
        self._bash.communicate()

    def type(self, text: str, patience_s: float = 300.0) -> str:
        """What a block of commands prints. Raises `AssertionError` if a command fails."""
        assert self._bash.stdin is not None
        block = self._directory / ".block.sh"
        block.write_text(text)
        self._bash.stdin.write(f". {block} < /dev/null; echo; echo {_END}\n".encode())
        self._bash.stdin.flush()
        return self._read(text, time.monotonic() + patience_s)

    def _read(self, text: str, deadline_s: float) -> str:
        assert self._bash.stdout is not None
        output = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._bash.stdout, selectors.EVENT_READ)
            while not output.endswith(f"{_END}\n".encode()):
                assert selector.select(max(0.0, deadline_s - time.monotonic())), (
                    f"still runs:\n{text}\n{output.decode()}"
                )
                data = os.read(self._bash.stdout.fileno(), 1 << 16)
                assert data, f"failed:\n{text}\n{output.decode()}"
                output += data
        return output.decode().removesuffix(f"\n{_END}\n")
