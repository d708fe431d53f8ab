"""The job of a replica: sbatch's options, and a script in which nothing inserted is executed."""

import subprocess
from importlib import resources
from pathlib import Path

import pytest
import yaml

from inference_gateway import services
from inference_gateway.gateway_paths import GatewayPaths
from inference_gateway.replicas import submission
from inference_gateway.replicas.identity import Authority
from inference_gateway.replicas.submission import Qos, Tag, parse_tag
from inference_gateway.sections import ServiceSection
from sbatch_templates import shell_environment

HOSTILE = "$(touch /nowhere/canary) `id` 'q' \"q\" \\ ; {x} *"


def service(**replica: object) -> ServiceSection:
    given = {"command": "serve --port {port}", **replica}
    data = {"listen": {"host": "127.0.0.1"}, "services": {"chat": {"replica": given}}}
    return services.parse(yaml.safe_dump(data), Path("/srv/services.yaml")).services["chat"]


def options(section: ServiceSection, qos: Qos = Qos("", requeue=False)) -> tuple[str, ...]:  # noqa: B008  frozen
    return submission.options(section, Tag("g", "chat", "abcd1234"), "chat-1", GatewayPaths(Path("/gw")), qos)


def test_the_tag_is_found_again() -> None:
    tag = Tag("g", "chat", "abcd1234")
    assert parse_tag(str(tag)) == tag
    assert str(tag).startswith(submission.prefix("g"))
    assert parse_tag("igwjob:g") is None
    assert parse_tag("somebody's comment: x") is None


def test_options_hold_what_is_asked_for_and_nothing_else() -> None:
    given = options(service(gpus=2, gres="shard:4", partition="gpu,burst", time="4:00:00", options=["--exclude=n3"]))
    assert {"--gres=gpu:2,shard:4", "--partition=gpu,burst", "--time=4:00:00", "--exclude=n3"} <= set(given)
    assert "--signal=B:USR1@120" in given
    assert not any(option.startswith(("--qos", "--mem", "--account")) for option in given)


def test_only_burst_replicas_go_to_the_burst_qos() -> None:
    replica = service(qos="normal", burst_qos="low").replica
    assert submission.qos(replica, burst=True) == (Qos("low", requeue=True),)
    assert submission.qos(replica, burst=False) == (Qos("normal", requeue=False),)
    assert submission.qos(service().replica, burst=True) == (Qos("", requeue=False),)
    several = service(qos="normal,high", burst_qos="low,idle").replica
    assert submission.qos(several, burst=True) == (Qos("low", requeue=True), Qos("idle", requeue=True))
    assert submission.qos(several, burst=False) == (Qos("normal", requeue=False), Qos("high", requeue=False))


def test_the_script_runs_the_command_as_it_is_written(tmp_path: Path) -> None:
    words = ["printf", "%s\\n", HOSTILE, "{port}"]
    section = service(command=" ".join(subprocess.list2cmdline([word]) for word in ["true"]) + " {port}")
    section = service(command="echo " + " ".join(_quoted(word) for word in words), setup="export A=1\nexport B=$A")
    text = submission.script(section, "chat-1", GatewayPaths(tmp_path / "a dir"), "127.0.0.1")
    # What the runner of the job would be given: its words, printed instead of run.
    shown = text.replace("exec ", "printf '%s\\n' ", 1) + '\necho "B=$B" >&2\n'
    done = subprocess.run(["bash"], input=shown, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[lines.index("--") + 1 :] == ["echo", *words]
    assert str(tmp_path / "a dir" / "replicas" / "chat-1") in lines
    assert done.stderr == "B=1\n"


def test_a_signal_before_the_replica_listens_to_it_does_not_end_the_job(tmp_path: Path) -> None:
    text = submission.script(service(setup="kill -USR1 $$"), "chat-1", GatewayPaths(tmp_path), "127.0.0.1")
    shown = text.replace("exec ", "echo started: ", 1)
    done = subprocess.run(["bash"], input=shown, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.startswith("started: ")) == (0, True)


def test_the_script_passes_shellcheck(tmp_path: Path) -> None:
    text = submission.script(service(setup="module load cuda"), "chat-1", GatewayPaths(tmp_path), "127.0.0.1")
    done = subprocess.run(["shellcheck", "-"], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_a_gateway_of_the_last_release_can_use_the_script() -> None:
    """It reads the template from the package that has been upgraded meanwhile, and knows `python` only."""
    text = (resources.files("sbatch_templates") / "replica.sh.j2").read_text()
    values = {"directory": "d", "gateway": "h", "key_variable": "", "grace_s": 5, "nodes": 1, "worker": ""}
    shown = (
        shell_environment().from_string(text).render(python="/opt/python", stage=[], setup="", command=["x"], **values)
    )
    assert "exec /opt/python -m inference_gateway.replicas.serve --directory d " in shown


def test_a_share_of_kernels_is_given_to_sxrun() -> None:
    words = submission.kernel_share(service(kernel={"share": "best-effort", "request": 0.25}).replica.kernel)
    assert words[0].endswith("/sxrun")
    assert words[1:] == ["--share=best-effort", "--request=0.25", "--"]
    assert submission.kernel_share(service().replica.kernel) == []


class TestPlaces:
    def test_old_directories_are_removed_but_not_those_in_use(self, tmp_path: Path) -> None:
        paths = GatewayPaths(tmp_path)
        paths.make()
        authority = Authority.of(paths.identity)
        for number in range(6):
            submission.prepare(f"chat-{number}", paths, "#!/bin/bash\n", authority)
        paths.prune(frozenset({"chat-0"}), most=2)
        left = {path.name for path in (tmp_path / "replicas").iterdir()}
        assert len(left) == 3
        assert "chat-0" in left

    def test_the_files_that_the_gateway_looks_at_exist_from_the_start(self, tmp_path: Path) -> None:
        paths = GatewayPaths(tmp_path)
        paths.make()
        submission.prepare("chat-1", paths, "#!/bin/bash\n", Authority.of(paths.identity))
        assert {"endpoint", "ending"} <= {path.name for path in paths.replica("chat-1").iterdir()}


def _quoted(word: str) -> str:
    import shlex

    return shlex.quote(word)


@pytest.fixture(autouse=True)
def _needs_bash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BASH_ENV", raising=False)
