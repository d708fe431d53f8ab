"""A services file that cannot be used is refused with file, key path, what was found and what is accepted."""

import math
import re
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from explsched.strict_yaml import ConfigError
from inference_gateway import accepted, key_file, services
from inference_gateway.dataplane.settings import digest_of
from inference_gateway.gateway_paths import GatewayPaths

PATH = Path("/srv/services.yaml")
GOOD = """
listen: {host: 127.0.0.1}
services:
  chat:
    models: [llama]
    replica: {command: "serve --port {port}"}
"""


def faults(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        services.parse(text, PATH)
    return str(caught.value)


def test_the_least_that_is_needed() -> None:
    section = services.parse(GOOD, PATH)
    assert section.services["chat"].scale.min == 1
    assert section.state_directory.name == "gateway"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("models:", "modles:", "services.yaml: unknown key 'services.chat.modles'; did you mean 'models'"),
        ("models: [llama]", "models: llama", "services.chat.models: .*found 'llama'"),
        ("command:", "comand:", "unknown key 'services.chat.replica.comand'; did you mean 'command'"),
        ("command:", "comand:", "services.chat.replica.command: is missing"),
        ("--port {port}", "--port 8000", "services.chat.replica.command: must name the port .* as {port}"),
        ("serve --port", "serve ' --port", "services.chat.replica.command: No closing quotation"),
        ("command:", "options: [--comment=mine], command:", "chat.replica.options: found '--comment=mine', accepted:"),
        ("command:", "options: [--exclusive, --job=mine], command:", "chat.replica.options: found '--job=mine'"),
        ("chat:", "Chat_1:", "services: name 'Chat_1'"),
        (
            "models: [llama]",
            "scale: {rule: slrum}",
            "services.chat.scale: unknown scaling rule 'slrum'.*slurm",
        ),
        ("models: [llama]", "scale: {min: 9, max: 2}", "services.chat.scale: min 9, max 2"),
        ("models: [llama]", "scale: {options: {x: 1}}", "services.chat.scale: rule slurm: unknown option 'x'"),
        ("models: [llama]", "metrics: {server: vlm}", "must be one of vllm, sglang, tgi, found 'vlm'"),
        ("models: [llama]", "metrics: {running: 'a b'}", "services.chat.metrics.running: .*found 'a b'"),
        ("models: [llama]", "metrics: {kv_cache_limit: 90}", "services.chat.metrics.kv_cache_limit: .*found 90"),
        ("models: [llama]", "concurrency: 0", "services.chat.concurrency: .* from 1 .*found 0"),
        ("models: [llama]", "concurrency: two", "services.chat.concurrency: .*found 'two'"),
        ("models: [llama]", "queue_deadline_s: .inf", "services.chat.queue_deadline_s: .*found inf"),
        ("models: [llama]", "repeat_posts: always", "must be one of never-sent, unanswered, found 'always'"),
        ("host: 127.0.0.1", "host: 0.0.0.0", "listen.keys: without keys anybody"),
        ("models: [llama]", "paths: [v1/x]", r"services.chat.paths: found .v1/x., accepted: absolute paths"),
        ("models: [llama]", "paths: [/a/../b]", r"services.chat.paths: found ./a/../b., accepted"),
        ("models: [llama]", "paths: [/a*]", r"services.chat.paths: found ./a\*., accepted"),
        ("models: [llama]", "paths: []", "services.chat.paths: is empty, at least one path is needed"),
        ("listen: {host: 127.0.0.1}", "listen: {port: 99999}", "listen.port: .*65,535.*found 99999"),
    ],
)
def test_faults_are_named(old: str, new: str, words: str) -> None:
    found = faults(GOOD.replace(old, new))
    assert re.search(words, found), found


def test_nothing_but_words_reaches_sbatch() -> None:
    for value in ("main; rm -rf /", "a b", "$(id)", "x\n#SBATCH --uid=0"):
        text = GOOD.replace('{command: "', f'{{partition: {value!r}, command: "'.replace("\\n", "\\\\n"))
        with pytest.raises(ConfigError, match=r"services.chat.replica.partition"):
            services.parse(text, PATH)


def test_a_model_leads_to_one_service() -> None:
    text = GOOD + '  other: {models: [llama, chat], replica: {command: "x {port}"}}\n'
    found = faults(text)
    assert "services.other.models: 'llama' is already routed to service 'chat'" in found
    assert "services.other.models: 'chat' is already routed to service 'chat'" in found


def test_a_share_of_kernels_makes_sense() -> None:
    text = GOOD.replace('{command: "', '{kernel: {share: high, request: 0.5, limit: 0.3}, command: "')
    assert "services.chat.replica.kernel.request: 0.5 is above the limit, 0.3" in faults(text)


@pytest.mark.parametrize("kernel", ["request: 0.5, limit: 0.5", "request: 0.5", "limit: 0.5"])
def test_a_share_of_kernels_that_is_right(kernel: str) -> None:
    text = GOOD.replace('{command: "', f'{{kernel: {{share: high, {kernel}}}, command: "')
    assert services.parse(text, PATH).services["chat"].replica.kernel.share == "high"


def test_a_gateway_has_a_service() -> None:
    assert "services: is empty, at least one is needed" in faults("services: {}\n")
    assert "is empty" not in faults(GOOD.replace("command:", "comand:")), "it has one, with a fault that is told"


def test_relative_paths_start_at_the_file(tmp_path: Path) -> None:
    text = GOOD.replace("127.0.0.1}", "127.0.0.1, keys: keys.yaml}") + "directory: state\n"
    section = services.parse(text, tmp_path / "services.yaml")
    assert section.directory == tmp_path / "state"
    assert section.listen.keys == tmp_path / "keys.yaml"


def test_only_what_makes_a_replica_changes_its_generation() -> None:
    chat = services.parse(GOOD, PATH).services["chat"]
    scaled = services.parse(GOOD + "    scale: {max: 3}\n", PATH).services["chat"]
    other = services.parse(GOOD.replace("serve", "serve2"), PATH).services["chat"]
    assert chat.generation() == scaled.generation() != other.generation()


def with_value(key: str, value: object) -> dict[str, Any]:
    """A services file with every section, in which one key has this value."""
    more: dict[str, Any] = {"replica": {"command": "x {port}"}}
    chat = {**more, "canary": {"service": "more"}, "metrics": {}}
    found: dict[str, Any] = {"listen": {"host": "127.0.0.1"}, "services": {"more": more, "chat": chat}}
    found["job"] = {"second": {"port": 8081}}
    *sections, last = key.replace("NAME", "chat").split(".")
    place = found
    for name in sections:
        place = place.setdefault(name, {})
    place[last] = value
    return found


def test_what_is_within_the_limits_that_are_told_starts_a_gateway(tmp_path: Path) -> None:
    """`gateway services` called files good that `up` and `reload` refused."""
    path = tmp_path / "services.yaml"
    GatewayPaths(tmp_path / "state").make()
    refused = set()
    numbers = [key for key in list(services.keys()) if " number " in key.accepted]
    limits = [
        (key.name, word, float(limit.replace(",", "")))
        for key in numbers
        for word, limit in re.findall(r"\b(above|from|to) (\d[\d,.e-]*)", key.accepted)
    ]
    assert len(limits) > 80
    for key, word, limit in limits:
        value = math.nextafter(limit, math.inf) if word == "above" else int(limit) if limit.is_integer() else limit
        path.write_text(yaml.safe_dump({**with_value(key, value), "directory": "state"}))
        try:
            now = accepted.read(path)
        except ConfigError:
            refused.add((key, word))
            continue
        now.settings(tmp_path / "run")
    assert refused == {("services.NAME.scale.min", "to")}, "a minimum above the maximum"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("services.chat.models", ["mod\u00e8le"]),
        ("services.chat.also_serves", ["mod\u00e8le"]),
        ("services.chat.health.path", "/he\u00e4lth"),
        ("services.chat.health.path", "/" + 200 * "a"),
        ("services.chat.metrics.path", "/m\u00e9trics"),
        ("services.chat.health.interval_s", 0.05),
        ("services.chat.queue_deadline_s", 0.0001),
        ("services.chat.response_timeout_s", 0.0001),
        ("services.chat.requests_per_s", 1e-9),
        ("listen.host", "gpu_1"),
    ],
)
def test_what_haproxy_cannot_take_is_named_with_file_and_service(key: str, value: object) -> None:
    assert f"services.yaml: {key}: " in faults(yaml.safe_dump(with_value(key, value)))


def test_every_key_has_a_meaning() -> None:
    found = list(services.keys())
    assert len(found) > 50
    assert all(key.meaning for key in found)


class TestKeys:
    def test_a_new_key_is_known_by_its_hash(self, tmp_path: Path) -> None:
        secret, line = key_file.new_key("alice")
        path = tmp_path / "keys.yaml"
        path.write_text(f"keys:\n{line}\n")
        (key,) = key_file.load(path)
        assert (key.name, key.digest) == ("alice", digest_of(secret))
        assert secret not in path.read_text()
        assert key_file.new_key("alice")[0] != secret

    def test_a_key_is_what_its_line_says(self, tmp_path: Path) -> None:
        """The hash may stand in either case; HAProxy compares capital letters."""
        path = tmp_path / "keys.yaml"
        path.write_text(
            "keys:\n  a: {sha256: " + 64 * "a" + ", services: [chat], requests_per_minute: 9, expires: 2031-03-30, "
            "tokens_per_minute: 10, tokens_per_day: 11, weight: 4, priority: batch}\n"
        )
        (key,) = key_file.load(path)
        assert key.expires_s is not None
        assert time.strftime("%F %T", time.localtime(key.expires_s)) == "2031-03-31 00:00:00"
        assert (key.name, key.digest, key.services, key.requests_per_minute) == ("a", 64 * "A", ("chat",), 9)
        assert (key.tokens_per_minute, key.tokens_per_day, key.weight, key.priority) == (10, 11, 4, "batch")

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("keys: {alice: {sha256: abc}}", "keys.alice.sha256"),
            ("keys: {alice: {}}", "keys.alice.sha256: is missing"),
            ("keys: {al ice: {sha256: " + 64 * "a" + "}}", "keys: name 'al ice'"),
            ("keys: {a: {sha256: " + 64 * "a" + ", requests_per_minute: 0}}", "keys.a.requests_per_minute"),
            ("keys: {a: {sha256: " + 64 * "a" + ", expires: soon}}", "keys.a.expires"),
            ("keys: {a: {sha256: " + 64 * "a" + ", expires: 3}}", "keys.a.expires: must be a date or null, found 3"),
            (f"keys: {{a: {{sha256: {64 * 'a'}}}, b: {{sha256: {64 * 'A'}}}}}", "keys.b.sha256: is that of a, too"),
            ("key: {}", "unknown key 'key'; did you mean 'keys'"),
            ("keys: {a: {sha256: " + 64 * "a" + ", services: [a b]}}", "keys.a: key a: services: found 'a b'"),
        ],
    )
    def test_faults_are_named(self, tmp_path: Path, text: str, words: str) -> None:
        path = tmp_path / "keys.yaml"
        path.write_text(text)
        with pytest.raises(ConfigError, match=words):
            key_file.load(path)


CHAT = "services.yaml: services.chat."


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("canary: {service: more}", CHAT + "canary.service: no other service 'more' .none."),
        ("canary: {service: chat}", CHAT + "canary.service: no other service 'chat'"),
        ("canary: {service: more, share: 2}", "services.chat.canary.share: .*found 2"),
        ("batches: yes", "services.chat.batches: .*found True"),
        ("batches: always", "services.chat.batches: .*none.*idle.*start.*found 'always'"),
        ("also_serves: [llama, chat-2, chat-2, '']", "services.chat.also_serves"),
    ],
)
def test_lanes_and_canaries(more: str, words: str) -> None:
    assert re.search(words, faults(GOOD + f"    {more}\n")), faults(GOOD + f"    {more}\n")


def test_a_canary_opens_the_paths_of_its_service(tmp_path: Path) -> None:
    """HAProxy asks the service that a client names, before it sends its share to the canary."""
    other = "  next: {paths: [%s], replica: {command: 'x {port}'}}\n"
    chat = "    paths: [/v1/embeddings, '/v2/*']\n    canary: {service: next}\n"
    path = tmp_path / "services.yaml"
    path.write_text(GOOD + chat + other % "'/v2/*', /v1/embeddings")
    accepted.read(path).check()
    path.write_text(GOOD + chat + other % "'/v2/*', /v1/x")
    words = r"services.chat.canary.service: 'next' has other paths than 'chat' \(/v1/embeddings, /v1/x\)"
    with pytest.raises(ConfigError, match=words):
        accepted.read(path)
    (tmp_path / "kept").mkdir()
    for name, text in (("services.yaml", path.read_text()), ("keys.yaml", "")):
        (tmp_path / "kept" / name).write_text(text)
    assert accepted.kept(tmp_path / "kept", path) is not None, "as of a gateway that was begun by 0.1.0"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("worker_command: x", "replica.worker_command: is for replicas over several nodes, replica.nodes is 1"),
        ('worker_command: "x \'"', "replica.worker_command: No closing quotation"),
        ("nodes: 0", "services.chat.replica.nodes: .*found 0"),
        ("stage: {source: a, target: /b}", "replica.stage.source: must be an absolute path, found 'a'"),
    ],
)
def test_replicas_over_nodes_and_their_models(more: str, words: str) -> None:
    text = GOOD.replace('{port}"}', f'{{port}}", {more}}}')
    assert re.search(words, faults(text)), faults(text)


def test_a_staged_model_is_part_of_the_generation() -> None:
    text = GOOD.replace('{port}"}', '{port} {model}", nodes: 2, stage: {source: /a, target: /b}}')
    assert services.parse(text, PATH).services["chat"].generation()
    assert "replica.stage has copied" in faults(GOOD.replace("{port}", "{port} {model}"))


@pytest.mark.parametrize(
    ("job", "good"),
    [
        ("{second: {}}", False),
        ("{node: a, second: {node: a}}", False),
        ("{node: a, second: {node: b}}", True),
        ("{second: {port: 8081}}", True),
        ("{second: {port: 8080}}", False),
    ],
)
def test_two_gateways_need_two_places(job: str, *, good: bool) -> None:
    text = f"job: {job}\n{GOOD}"
    if good:
        assert services.parse(text, PATH).job.second is not None
    else:
        assert "job.second: both gateways may run on the same node and listen on port 8080" in faults(text)
