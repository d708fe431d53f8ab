"""A services file that is edited while its gateway is up."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from explsched.strict_yaml import ConfigError
from inference_gateway import accepted, services
from inference_gateway.accepted import Accepted
from inference_gateway.cli.commands import reload
from inference_gateway.errors import GatewayError, StartError
from inference_gateway.gateway_paths import GatewayPaths
from inference_gateway.supervisor import reloads
from inference_gateway.supervisor.loop import main
from inference_gateway.supervisor.reloads import Revision, accepted_files

ROOT = Path(__file__).parents[3]
GOOD = """
name: t
directory: state
listen: {host: 127.0.0.1, keys: keys.yaml}
services: {chat: {replica: {command: "serve {port}"}}}
"""
MORE = GOOD.replace("services: {", 'services: {more: {replica: {command: "x {port}"}}, ')
TWO = GOOD.replace("services:", "job: {second: {port: 9}}\nservices:")
KEYS = "keys:\n  alice: {sha256: " + 64 * "a" + "}\n"


class Gateway:
    """A gateway that remembers what was put in force."""

    def __init__(self, directory: Path) -> None:
        self.services = directory / "services.yaml"
        self.keys = directory / "keys.yaml"
        self.services.write_text(GOOD)
        self.keys.write_text(KEYS)
        (directory / "c.pem").write_text("PEM")
        self.paths = GatewayPaths(directory / "state")
        self.paths.make()
        self.put: list[Accepted] = []
        self.revision = Revision(accepted.read(self.services), self.put.append)

    def asked(self) -> str:
        """Ask as the command does; the fault it is told."""
        request = reloads.ask(self.paths)
        self.revision.check()
        found = reloads.outcome(self.paths, request)
        assert found is not None
        return found.fault


@pytest.fixture
def gateway(tmp_path: Path) -> Gateway:
    return Gateway(tmp_path)


def test_changed_files_are_not_read_before_a_request(gateway: Gateway) -> None:
    gateway.services.write_text(MORE)
    gateway.revision.check()
    assert gateway.put == []
    gateway.revision.check_now()
    gateway.revision.check()
    gateway.revision.check()
    assert [tuple(now.section.services) for now in gateway.put] == [("more", "chat")]
    assert gateway.revision.now is gateway.put[0]
    assert not gateway.paths.reloaded.exists(), "nobody waits for an answer to a signal"


def test_a_reload_is_answered(gateway: Gateway) -> None:
    gateway.services.write_text(MORE)
    assert gateway.asked() == ""
    gateway.keys.write_text(KEYS.replace("alice", "bob"))
    assert gateway.asked() == ""
    assert [[key.name for key in now.keys] for now in gateway.put] == [["alice"], ["bob"]]
    assert reloads.asked(gateway.paths) is None


def test_a_key_for_an_unknown_service_is_refused(gateway: Gateway) -> None:
    gateway.keys.write_text(KEYS.replace("}", ", services: [chat, cat]}"))
    assert gateway.asked() == f"{gateway.keys}: keys.alice.services: no service 'cat' (chat)"
    assert gateway.put == []


def test_an_answer_belongs_to_its_request(gateway: Gateway) -> None:
    first = reloads.ask(gateway.paths)
    assert reloads.outcome(gateway.paths, first) is None
    second = reloads.ask(gateway.paths)
    gateway.revision.check()
    assert reloads.outcome(gateway.paths, first) is None
    assert reloads.outcome(gateway.paths, second) == reloads.ReloadResult(second, "")
    reloads.answer(gateway.paths, second, "again")  # whose question was taken back meanwhile


def test_a_request_during_a_reload_is_answered_by_the_next(gateway: Gateway) -> None:
    def put(new: Accepted) -> None:
        if not gateway.put:
            gateway.services.write_text(MORE.replace("more", "later"))
            requests.append(reloads.ask(gateway.paths))
        gateway.put.append(new)

    gateway.revision.put = put
    gateway.services.write_text(MORE)
    requests = [reloads.ask(gateway.paths)]
    for number in (0, 1):
        gateway.revision.check()
        assert reloads.outcome(gateway.paths, requests[number]) == reloads.ReloadResult(requests[number], "")
    assert [tuple(now.section.services) for now in gateway.put] == [("more", "chat"), ("later", "chat")]
    assert reloads.asked(gateway.paths) is None


def test_the_docs_name_every_key_that_a_reload_refuses_to_change() -> None:
    (sentence,) = re.findall(r"^`name`, .*?need `down` and `up`\.", (ROOT / "docs/gateway.md").read_text(), re.M | re.S)
    section = services.parse(GOOD, Path("services.yaml"))
    assert set(re.findall(r"`([\w.]+)`", sentence)) - {"down", "up"} == set(accepted.unchangeable(section))


def test_a_request_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(GatewayError, match="reload: cannot be written: No such file"):
        reloads.ask(GatewayPaths(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (GOOD.replace("replica", "replika"), "services.chat.replika"),
        ("]", "is not YAML"),
        ("", "services: is missing"),
        (GOOD.replace("name: t", "name: u"), "name: is t and cannot become u while the gateway is up"),
        (GOOD.replace("directory: state", "directory: other"), "directory: is"),
        (GOOD.replace("127.0.0.1", "localhost"), "listen.host: is 127.0.0.1"),
        (GOOD.replace("keys.yaml", "~nosuchuser/k"), "listen.keys: the user in '~nosuchuser/k' has no home directory"),
        (GOOD.replace("keys:", "port: 9, keys:"), "listen.port: is 8080 and cannot become 9"),
        (GOOD.replace("keys:", "certificate: c.pem, keys:"), "listen.certificate: is http and cannot become https"),
    ],
)
def test_an_invalid_services_file_changes_nothing(gateway: Gateway, text: str, words: str) -> None:
    before = gateway.revision.now
    gateway.services.write_text(text)
    assert words in gateway.asked()
    assert gateway.put == []
    assert gateway.revision.now is before


DIGEST = f"sha256: {'a' * 64}"


@pytest.mark.parametrize(
    ("services", "keys", "words"),
    [
        (GOOD.replace("name: t", "name: u"), KEYS, "while the gateway is up"),
        (GOOD.replace("directory: state", "directory: other"), KEYS, "while the gateway is up"),
        (GOOD.replace("127.0.0.1", "localhost"), KEYS, "while the gateway is up"),
        (GOOD.replace("keys:", "port: 9, keys:"), KEYS, "while the gateway is up"),
        (GOOD.replace("keys:", "certificate: c.pem, keys:"), KEYS, "while the gateway is up"),
        (TWO, KEYS, "while the gateway is up"),
        (GOOD.replace("replica", "replika"), KEYS, "services.chat.replika"),
        (GOOD, f"keys: {{alice: {{{DIGEST}}}, bob: {{{DIGEST}}}}}", "keys.bob.sha256: is that of alice"),
    ],
)
def test_a_successor_takes_no_change_that_a_reload_refuses(
    gateway: Gateway, caplog: pytest.LogCaptureFixture, services: str, keys: str, words: str
) -> None:
    before = gateway.revision.now
    before.keep()
    gateway.services.write_text(services)
    gateway.keys.write_text(keys)
    assert accepted_files(gateway.services, gateway.paths.accepted, 1) == before
    gateway.revision.put = lambda new: gateway.put.append(new) if new.settings(gateway.services.parent) else None
    gateway.revision.check_changed()
    gateway.revision.check()
    assert words in caplog.text
    assert gateway.put == []
    assert gateway.revision.now is before


def test_a_successor_takes_by_a_reload_what_has_changed(gateway: Gateway) -> None:
    before = gateway.revision.now
    before.keep()
    gateway.revision.check_changed()
    gateway.revision.check()
    assert gateway.put == []
    gateway.services.write_text(MORE)
    assert accepted_files(gateway.services, gateway.paths.accepted, 1) == before
    gateway.revision.check_changed()
    gateway.revision.check()
    assert gateway.put == [accepted.read(gateway.services)]


@pytest.mark.parametrize("slot", [1, 2])
def test_what_one_of_two_gateways_takes_at_its_start_the_other_is_asked_to_take(gateway: Gateway, slot: int) -> None:
    """Else a handover, or a first job that has waited, puts half of an edit in force."""
    gateway.services.write_text(TWO)
    revision = Revision(accepted.read(gateway.services, slot), gateway.put.append)
    other = gateway.paths.of(3 - slot)
    other.gateway.write_text("{}")
    revision.check_changed()
    assert reloads.asked(other) is None, "nothing is new"
    gateway.services.write_text("]")
    revision.check_changed()
    assert reloads.asked(other) is None, "nothing can be taken"
    gateway.keys.write_text(KEYS.replace("alice", "bob"))
    gateway.services.write_text(TWO)
    revision.check_changed()
    revision.check()
    request = reloads.asked(other)
    assert request is not None
    assert len(gateway.put) == 1
    gateway.services.write_text(TWO.replace("chat", "talk"))
    revision.check_changed()
    assert reloads.asked(other) == request, "who asks by a command waits for an answer to this one"


def test_another_gateway_that_is_not_up_or_cannot_be_asked_holds_up_nothing(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    other = gateway.paths.of(2)
    gateway.services.write_text(MORE)
    gateway.revision.check_changed()
    assert reloads.asked(other) is None
    other.gateway.write_text("{}")
    other.reload.mkdir()
    gateway.revision.check_changed()
    assert "the other gateway keeps its files" in caplog.text
    gateway.revision.check()
    assert len(gateway.put) == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("services.yaml", GOOD.replace("replica", "replika")),
        ("keys.yaml", f"keys: {{alice: {{{DIGEST}}}, bob: {{{DIGEST}}}}}"),
    ],
)
def test_a_saved_file_that_this_version_refuses_keeps_no_successor_from_serving(
    gateway: Gateway, name: str, text: str
) -> None:
    gateway.revision.now.keep()
    (gateway.paths.accepted / name).write_text(text)
    assert accepted_files(gateway.services, gateway.paths.accepted, 1) == accepted.read(gateway.services)


@pytest.mark.parametrize("keys", ["~nosuchuser/keys.yaml", 300 * "k"])
def test_it_serves_with_the_accepted_files_where_the_new_ones_cannot_be_read(gateway: Gateway, keys: str) -> None:
    gateway.revision.now.keep()
    gateway.services.write_text(GOOD.replace("keys.yaml", keys))
    assert accepted_files(gateway.services, gateway.paths.accepted, 1) == gateway.revision.now
    with pytest.raises(ConfigError, match=r"listen\.keys|cannot be read: File name too long"):
        accepted_files(gateway.services, None, 1)


def test_the_last_day_of_the_calendar_is_no_end(gateway: Gateway) -> None:
    gateway.keys.write_text(KEYS.replace("}", ", expires: 9999-12-31}"))
    assert gateway.asked() == ""
    assert [key.expires_s for key in gateway.put[0].keys] == [None]


def test_an_invalid_keys_file_changes_nothing(gateway: Gateway) -> None:
    gateway.keys.write_text("keys: {alice: {sha256: no}}")
    assert "keys.alice.sha256" in gateway.asked()
    gateway.keys.unlink()
    assert "keys.yaml: cannot be read" in gateway.asked()
    assert gateway.put == []


def test_a_refusal_by_haproxy_is_the_answer(gateway: Gateway) -> None:
    def refuse(_: Accepted) -> None:
        raise StartError("HAProxy refuses it")

    before = gateway.revision.now
    gateway.revision.put = refuse
    gateway.services.write_text(MORE)
    assert gateway.asked() == "HAProxy refuses it"
    assert gateway.revision.now is before


def test_the_accepted_configuration_survives_invalid_files(gateway: Gateway) -> None:
    kept = gateway.paths.accepted
    assert accepted.kept(kept, gateway.services) is None
    gateway.revision.now.keep()
    gateway.services.write_text("]")
    gateway.keys.unlink()
    assert accepted.kept(kept, gateway.services) == gateway.revision.now
    assert kept.stat().st_mode & 0o7777 == 0o700
    done = CliRunner().invoke(main, ["--services", str(gateway.services)])
    assert (done.exit_code, "not YAML" in done.output) == (1, True)


def test_an_accepted_configuration_replaces_the_last_one(gateway: Gateway) -> None:
    gateway.revision.now.keep()
    gateway.services.write_text(MORE)
    gateway.keys.write_text(KEYS.replace("alice", "bob"))
    new = accepted.read(gateway.services)
    new.keep()
    assert accepted.kept(gateway.paths.accepted, gateway.services) == new
    names = sorted(path.name.partition(".")[0] for path in gateway.paths.accepted.iterdir())
    assert names == ["keys", "origin", "services"]


class TestACertificate:
    """It is kept as the other files are: whoever renews it may leave half of it, or none."""

    @pytest.fixture
    def https(self, gateway: Gateway) -> Gateway:
        gateway.services.write_text(GOOD.replace("keys:", "certificate: c.pem, keys:"))
        gateway.revision = Revision(accepted.read(gateway.services), gateway.put.append)
        gateway.revision.now.keep()
        return gateway

    def test_a_successor_begins_with_the_accepted_one(self, https: Gateway) -> None:
        for damage in (lambda pem: pem.write_text("half"), Path.unlink):
            damage(https.services.with_name("c.pem"))
            begun = accepted_files(https.services, https.paths.accepted, 1)
            assert (begun, begun.settings(Path("/run/g")).certificate) == (https.revision.now, "PEM")

    def test_only_its_user_may_read_it(self, https: Gateway) -> None:
        assert (https.paths.accepted / "certificate.pem").stat().st_mode & 0o777 == 0o600

    def test_a_reload_takes_a_renewed_one_and_no_missing_one(self, https: Gateway) -> None:
        pem = https.services.with_name("c.pem")
        pem.write_text("renewed")
        assert https.asked() == ""
        assert [now.certificate for now in https.put] == ["renewed"]
        pem.unlink()
        assert https.asked() == f"{pem}: cannot be read: No such file or directory"
        assert len(https.put) == 1

    def test_haproxy_reads_the_file_itself_where_the_version_before_has_kept_none(self, https: Gateway) -> None:
        """And where it cannot the job goes on trying, and then has another one try."""
        (https.paths.accepted / "certificate.pem").unlink()
        pem = https.services.with_name("c.pem")
        for damage in (lambda _pem: None, Path.unlink, Path.mkdir):
            damage(pem)
            begun = accepted_files(https.services, https.paths.accepted, 1)
            assert begun.settings(Path("/run/g")).certificate == pem

    def test_a_key_beside_it_and_a_directory_are_left_to_haproxy(self, https: Gateway) -> None:
        pem, kept = https.services.with_name("c.pem"), https.paths.accepted
        key = pem.with_name("c.pem.key")
        key.write_text("KEY")
        assert https.asked() == ""
        https.put[-1].keep()
        assert (https.put[-1].certificate, (kept / "certificate.pem").exists()) == (pem, False)
        assert accepted.kept(kept, https.services) == https.put[-1] == accepted.read(https.services)
        for path in (key, pem):
            path.unlink()
        pem.mkdir()
        assert accepted.read(https.services).certificate == pem

    def test_comments_may_be_in_any_encoding(self, https: Gateway) -> None:
        """As those of `openssl pkcs12`."""
        https.services.with_name("c.pem").write_bytes("subject=/O=Universit\xe4t\nPEM".encode("latin-1"))
        assert https.asked() == ""
        https.put[-1].keep()
        kept = accepted.kept(https.paths.accepted, https.services)
        assert kept == https.put[-1]
        assert kept.certificate == "subject=/O=Universit\N{REPLACEMENT CHARACTER}t\nPEM"

    def test_none_stays_behind_without_https(self, https: Gateway) -> None:
        https.services.write_text(GOOD)
        accepted.read(https.services).keep()
        assert not (https.paths.accepted / "certificate.pem").exists()


def test_a_configuration_without_keys_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "services.yaml"
    path.write_text(GOOD.replace(", keys: keys.yaml", ""))
    now = accepted.read(path)
    now.paths.make()
    now.keep()
    assert now.keys == ()
    assert accepted.kept(now.paths.accepted, path) == now


def test_a_full_disk_is_an_error_that_names_the_file(gateway: Gateway) -> None:
    gateway.paths.accepted.write_text("not a directory")
    with pytest.raises(GatewayError, match="accepted: cannot be written"):
        gateway.revision.now.keep()


def test_the_command_needs_a_running_gateway_and_a_valid_file(gateway: Gateway) -> None:
    def told(*argv: str) -> str:
        done = CliRunner().invoke(reload, ["--services", str(gateway.services), *argv])
        assert done.exception is not None
        return str(done.exception)

    assert told() == "gateway t is not up"
    gateway.paths.gateway.write_text("{}")
    assert told("--wait", "0") == "gateway t does not answer; it takes the file as soon as it can"
    gateway.services.write_text("]")
    assert "is not YAML" in told()
