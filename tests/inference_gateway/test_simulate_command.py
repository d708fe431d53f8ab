"""`sexplsched gateway simulate` end to end."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from explsched.cli import root
from simulation.requests.settings import RequestReplayError


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    path = tmp_path / "requests.csv"
    path.write_text("arrival_s,service_s\n" + "".join(f"{i / 2},4\n" for i in range(240)))
    return path


def simulate(*arguments: object) -> Result:
    return CliRunner().invoke(root, ["gateway", "simulate", *map(str, arguments)], catch_exceptions=False)


def test_the_json_of_one_rule(requests: Path) -> None:
    done = simulate("--requests", requests, "--rule", "dilu", "--concurrency", 2, "--start-time", 10, "--json")
    answer = json.loads(done.stdout)
    assert answer["rule"] == "dilu"
    assert answer["requests"] == 240
    assert 0 < answer["slo_miss_share"] <= 1
    assert answer["replica_seconds"] > 120
    assert answer["queue_p99_s"] > 2
    assert answer["capacity"] == {"requests_per_s": 0.5, "concurrency": 2, "start_s": 10.0}
    assert answer["settings"]["slo_s"] == 2.0
    assert answer["settings"]["tpot_s"] is None, "JSON has no infinity"


def test_the_default_rule_is_ours(requests: Path) -> None:
    assert json.loads(simulate("--requests", requests, "--json").stdout)["rule"] == "slurm"


def test_a_sweep_of_two_rules_with_a_picture(requests: Path, tmp_path: Path) -> None:
    picture = tmp_path / "rules.png"
    both = ("--rule", "dilu", "--rule", "knative", "--option", "knative.panic_threshold=5")
    done = simulate("--requests", requests, *both, "--sweep", "0.5,1.5", "--plot", picture, "--json")
    runs = json.loads(done.stdout)["runs"]
    assert [(run["rule"], run["options"].get("utilization")) for run in runs] == [
        ("dilu", None),
        ("dilu", "0.5"),
        ("dilu", "1.5"),
        ("knative", None),
        ("knative", "0.5"),
        ("knative", "1.5"),
    ]
    assert runs[3]["options"] == {"panic_threshold": "5"}
    assert picture.stat().st_size > 5000
    assert runs[1]["replica_seconds"] >= runs[2]["replica_seconds"]


def test_the_table(requests: Path) -> None:
    lines = simulate("--requests", requests, "--rule", "dilu", "--rule", "slurm").stdout.splitlines()
    assert lines[0].split() == ["dilu", "slurm"]
    assert any(line.startswith("replica_seconds") for line in lines)


def test_bad_rows_are_named_and_strict_makes_them_fatal(requests: Path) -> None:
    requests.write_text(requests.read_text() + "soon,1\n")
    done = simulate("--requests", requests, "--json")
    assert done.exit_code == 0
    assert "1 row left out" in done.stderr
    assert "line 242: arrival_s: found 'soon'" in done.stderr
    assert json.loads(done.stdout)["rejected"] == 1
    strict = CliRunner().invoke(root, ["gateway", "simulate", "--requests", str(requests), "--strict"])
    assert strict.exit_code == 1
    assert "line 242" in str(strict.exception)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rule", "dilo"), "nearest: dilu"),
        (("--rule", "dilu", "--option", "window"), "accepted: NAME=VALUE"),
        (("--rule", "dilu", "--option", "slurm.headroom=1"), "for a rule that --rule names"),
        (("--rule", "dilu", "--option", "windows=1"), "nearest: window"),
        (("--sweep", "a,b"), "accepted: comma-separated numbers"),
        (("--sweep", "7"), "option utilization"),
        (("--start-time", "never"), "start time 'never'"),
        (("--service-time", "1:2:3"), "service time '1:2:3'"),
        (("--min", "5", "--max", "2"), "min 5, max 2"),
        (("--slo-s", "900"), "SLO 900 s"),
        (("--plot", "rules.gif"), "unknown kind of picture"),
    ],
)
def test_wrong_usage(requests: Path, arguments: tuple[str, ...], message: str) -> None:
    done = simulate("--requests", requests, *arguments)
    assert done.exit_code == 2
    assert message in done.stderr


def test_tokens_need_a_model(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 100, "output_length": 10}\n')
    failed = CliRunner().invoke(root, ["gateway", "simulate", "--requests", str(path)])
    assert "a service-time model is needed" in str(failed.exception)
    answer = json.loads(simulate("--requests", path, "--service-time", "0.1:25", "--json").stdout)
    assert answer["latency_p50_s"] == pytest.approx(0.26)


def test_help_names_rules_and_options() -> None:
    text = simulate("--help").output
    for word in ("slurm:", "knative:", "headroom=", "--step-time"):
        assert word in text


def test_continuous_batching_with_objectives_for_the_first_token_and_those_after_it(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    rows = "".join(f"2023-11-16 18:00:{i:02}.0,1000,50\n" for i in range(60))
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    how = ("--requests", path, "--step-time", "30:1:0.1", "--concurrency", 16, "--json")
    assert json.loads(simulate(*how).stdout)["slow"] == 0
    assert json.loads(simulate(*how, "--tpot-s", 0.02).stdout)["slow"] == 60
    both = simulate(*how, "--service-time", "1")
    assert both.exit_code == 2
    assert "--service-time and --step-time exclude each other" in both.output


@pytest.mark.parametrize(("service_time", "slow"), [("0.1:25", 0), ("0.1:100", 0), ("0.1:101", 3), ("41", 3)])
def test_the_time_per_token_of_requests_with_service_times(tmp_path: Path, service_time: str, slow: int) -> None:
    """That of the prompt is no part of it, and an answer of one token has none."""
    path = tmp_path / "mooncake.jsonl"
    lengths = [(100_000, 400)] * 3 + [(100_000, 1)]
    lines = [{"timestamp": 0, "input_length": read, "output_length": written} for read, written in lengths]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    answer = json.loads(simulate("--requests", path, "--service-time", service_time, "--tpot-s", 0.1, "--json").stdout)
    assert (answer["slow"], answer["slo_misses"]) == (slow, slow)


def test_without_tokens_there_is_no_time_per_token(requests: Path) -> None:
    with pytest.raises(RequestReplayError, match="--tpot-s needs the tokens of each request"):
        simulate("--requests", requests, "--tpot-s", 0.1)


def test_how_long_requests_take_is_told_once(requests: Path) -> None:
    done = simulate("--requests", requests, "--service-time", "50", "--json")
    assert done.exit_code == 0
    assert done.stderr == f"warning: --service-time is not used: {requests} has service times\n"
    with pytest.raises(RequestReplayError, match="--step-time needs the tokens of each request"):
        simulate("--requests", requests, "--step-time", "12:0.35:0.05")
