"""The dashboard asks for what the gateway tells."""

import json
import re
from pathlib import Path

from inference_gateway.dataplane.statistics import DataPlaneCollector, exposition
from inference_gateway.model import ServerState, Traffic

ROOT = Path(__file__).parent.parent.parent


def test_every_metric_of_the_dashboard_exists_and_is_shown() -> None:
    server = ServerState("s", "r", "127.0.0.1", 1, "up", 0)
    text = exposition(DataPlaneCollector([Traffic("s", 5, 1, 2, 3)], [server], [("s", 1)], [("disk", 0)]))
    told = {line.partition("{")[0] for line in text.splitlines() if not line.startswith("#")}
    panels = json.loads((ROOT / "docs/gateway_dashboard.json").read_text())["panels"]
    asked = {
        name for panel in panels for target in panel["targets"] for name in re.findall(r"inference_\w+", target["expr"])
    }
    assert asked == told
    assert 'inference_gateway_requests_total{service="s"} 5.0' in text
    assert 'inference_gateway_requests_queued{service="s"} 3.0' in text
