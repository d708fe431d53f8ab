"""What a progress file says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def reports(path: Path, metric: str = "loss") -> list[tuple[int, float]]:
    return [(line["step"], line["value"]) for line in lines(path) if line.get("metric") == metric]


def events(path: Path) -> list[str]:
    return [line["event"] for line in lines(path) if "event" in line]
