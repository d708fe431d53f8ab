"""HTTPS: with a certificate the port speaks TLS alone, and a renewed certificate is taken without losing a request."""

import http.client
import json
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from inference_gateway.dataplane.settings import ServiceSettings
from tests.inference_gateway.rig import CLIENT_KEY, Replica, Rig, gateway

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")


def certificate(path: Path, name: str) -> Path:
    """A PEM file with a new key and a certificate of its own for `localhost`."""
    key, chain = path.with_suffix(".key"), path.with_suffix(".chain")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    where = ["-keyout", str(key), "-out", str(chain), "-days", "2"]
    subject = ["-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*command, *where, *subject], check=True, capture_output=True)
    path.write_bytes(chain.read_bytes() + key.read_bytes())
    return path


def complete(rig: Rig, trusted: Path) -> tuple[int, str]:
    """Status and replica of a request that trusts this certificate alone."""
    context = ssl.create_default_context(cafile=str(trusted))
    link = http.client.HTTPSConnection("localhost", rig.port, timeout=20, context=context)
    try:
        body = json.dumps({"model": "chat", "max_tokens": 1})
        link.request("POST", "/v1/chat/completions", body, {"authorization": f"Bearer {CLIENT_KEY}"})
        answer = link.getresponse()
        answer.read()
        return answer.status, answer.headers["x-replica"]
    finally:
        link.close()


def test_https_with_a_certificate_that_is_renewed(directory: Path, servers: list[Replica]) -> None:
    pem = certificate(directory / "first.pem", "first")
    before = pem.with_suffix(".chain").read_bytes()
    (directory / "old.chain").write_bytes(before)
    chat = ServiceSettings("chat")
    with gateway(directory / "tls", chat, certificate=pem) as rig:
        rig.add("chat", servers[0].endpoint)
        assert complete(rig, pem.with_suffix(".chain")) == (200, "r1")
        with pytest.raises(http.client.HTTPException):
            rig.ask("GET", "/healthz")  # plain HTTP
        certificate(pem, "second")
        rig.plane.apply(rig.plane.settings)
        assert complete(rig, pem.with_suffix(".chain")) == (200, "r1")
        with pytest.raises(ssl.SSLCertVerificationError):
            complete(rig, directory / "old.chain")
