"""scripts/install goes on where a run before it was ended."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts/install"
MAKES_AN_ENVIRONMENT = """\
mkdir -p .venv/bin
printf '#!/bin/sh\\n' >.venv/bin/python
cp .venv/bin/python .venv/bin/pip
chmod 755 .venv/bin/*
"""


def tool(path: Path, body: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def test_an_environment_that_is_half_made_is_made_anew(tmp_path: Path) -> None:
    """venv links Python first, and installs pip into it for seconds."""
    tree, tools = tmp_path / "tree", tmp_path / "tools"
    (tree / "scripts").mkdir(parents=True)
    shutil.copy(SCRIPT, tree / "scripts/install")
    tool(tools / "dpkg-query", "echo install ok installed")
    tool(tools / "python3", MAKES_AN_ENVIRONMENT)
    tool(tree / ".venv/bin/python", "echo No module named pip >&2; exit 1")
    environment = {"PATH": f"{tools}:{os.environ['PATH']}"}
    done = subprocess.run([tree / "scripts/install"], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tree / ".venv/installed-base").exists()
