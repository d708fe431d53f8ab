"""How the benchmark of scaling rules judges one rule against another."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.gateway_cases import CASES
from benchmarks.gateway_rules import OURS, PEERS, Run, against, best, main, peer_options, traces_of
from inference_gateway.model import Capacity
from inference_gateway.scaling.rules import build
from simulation.requests.replay import RequestReplay
from simulation.requests.settings import RequestSettings
from simulation.requests.trace import Request, RequestTrace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,3985,328\n"
METRICS = RequestReplay.of(RequestTrace((Request(0.0, service_s=1.0),)), None, RequestSettings()).measured("dilu", {})


def run(arm: str, replica_seconds: float, misses: int, options: Mapping[str, object] | None = None) -> Run:
    return Run(arm, options or {}, replace(METRICS, replica_seconds=replica_seconds, slo_misses=misses))


PEER_RUNS = [run("knative", 100.0, 80), run("dilu", 90.0, 100), run("knative", 200.0, 10)]


def test_the_best_peer_costs_no_more() -> None:
    assert best(PEER_RUNS, 199.0) == PEER_RUNS[0]
    assert best(PEER_RUNS, 200.0) == PEER_RUNS[2]
    assert best(PEER_RUNS, 89.0) is None


@pytest.mark.parametrize(("cost", "misses", "ratio"), [(150.0, 40, 0.5), (95.0, 110, 1.1), (200.0, 0, 0.5)])
def test_ratio_of_ours_to_theirs(cost: float, misses: int, ratio: float) -> None:
    assert against(run(OURS, cost, misses), PEER_RUNS)["ratio"] == ratio


def test_without_a_peer_at_the_cost_there_is_no_ratio() -> None:
    assert "ratio" not in against(run(OURS, 1.0, 0), PEER_RUNS)


@pytest.mark.parametrize("rule", PEERS)
def test_all_options_of_a_peer_are_drawn_and_can_be_used(rule: str) -> None:
    drawn = peer_options(rule, 60)
    assert drawn[0] == {}
    assert drawn == peer_options(rule, 60)
    for name, values in PEERS[rule].items():
        assert {options[name] for options in drawn[1:]} == set(values)
    for options in drawn:
        build(rule, options, Capacity(1.0, 8, 60.0))


@pytest.mark.parametrize("name", ["azure_llm_2023_code.csv", "AzureLLMInferenceTrace_code.csv"])
def test_a_trace_is_found_under_our_name_and_the_publishers(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    assert CASES["azure-code"].path(tmp_path) == tmp_path / name
    assert CASES["azure-conversation"].path(tmp_path) is None
    assert CASES["bursts"].path(tmp_path) is not None


def test_cases_without_files_are_left_out_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "conversation_trace.jsonl").touch()
    assert list(traces_of(tmp_path, ())) == ["bursts", "mooncake-conversation"]
    told = capsys.readouterr().err.splitlines()
    assert [line.split(":")[1] for line in told] == [" azure-conversation", " azure-code", " mooncake-toolagent"]
    assert (
        told[2] == f"left out: mooncake-toolagent: no mooncake_toolagent.jsonl or toolagent_trace.jsonl in {tmp_path}"
    )


def test_a_case_that_is_named_and_has_no_file_is_an_error(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["--traces", str(tmp_path), "--case", "azure-code"])
    assert done.exit_code == 2
    assert "no azure_llm_2023_code.csv or AzureLLMInferenceTrace_code.csv in" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ("", "the last request arrives 0 s after the first"),
        ("2023-11-16 18:15:47,1,x\n", "1 rows cannot be used: line 3"),
    ],
)
def test_a_trace_that_cannot_be_measured_is_an_error(tmp_path: Path, rows: str, why: str) -> None:
    (tmp_path / "azure_llm_2023_code.csv").write_text(AZURE + rows)
    done = CliRunner().invoke(main, ["--traces", str(tmp_path), "--case", "azure-code", "--draws", "1", "-j", "1"])
    assert done.exit_code == 1
    assert why in done.stderr
