"""The broker behind the real nginx of Debian, with TLS, as the how-to sets it up."""

from __future__ import annotations

import re
import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from privmarket.broker._client import BrokerClient
from privmarket_fixtures.broker_process import BrokerProcess
from privmarket_fixtures.processes import free_port

EXAMPLE = Path(__file__).parents[2] / "src/privmarket/examples" / "broker" / "nginx.conf"


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, str, ssl.SSLContext]]:
    """A broker, the address of nginx in front of it, and what trusts its certificate."""
    nginx, openssl = shutil.which("nginx") or "/usr/sbin/nginx", shutil.which("openssl")
    if not Path(nginx).exists() or openssl is None:
        pytest.skip("Debian's nginx or openssl is not installed")
    folder = tmp_path_factory.mktemp("nginx")
    server = BrokerProcess(
        f"sqlite:///{folder}/m.db",
        folder / "log",
        PRIVMARKET_BEHIND_PROXY="127.0.0.1",
        PRIVMARKET_SECURE_COOKIES="1",
        PRIVMARKET_ACCESS_LOG="1",
    )
    server.start()
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", str(folder / "market.key"), "-out", str(folder / "market.pem")]
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *files, *subject]
    subprocess.run(command, check=True, capture_output=True)
    port, text = free_port(), EXAMPLE.read_text()
    for old, new in (
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("/etc/ssl/certs/market.pem", str(folder / "market.pem")),
        ("/etc/ssl/private/market.key", str(folder / "market.key")),
        ("http://127.0.0.1:8000", server.url),
    ):
        assert old in text
        text = text.replace(old, new)
    temporary = " ".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log {folder}/error.log; events {{}}\n"
        f"http {{ access_log off; {temporary}\n{text}\n}}\n"
    )
    process = subprocess.Popen([nginx, "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")])
    trusted = ssl.create_default_context(cafile=str(folder / "market.pem"))
    url = f"https://127.0.0.1:{port}"
    deadline = time.monotonic() + 120
    while True:
        try:
            httpx.get(f"{url}/health", verify=trusted, timeout=30)
            break
        except httpx.TransportError:
            assert time.monotonic() < deadline, (folder / "error.log").read_text()
            time.sleep(0.1)
    yield server, url, trusted
    process.terminate()
    process.wait(20)
    server.kill()


def test_a_client_through_tls(behind: tuple[BrokerProcess, str, ssl.SSLContext]) -> None:
    server, url, trusted = behind
    http = httpx.Client(base_url=url, verify=trusted, timeout=60)
    operator = BrokerClient(url, server.operator_token, http=http)
    buyer = operator.register("buyer", "lab")
    assert buyer.me()["role"] == "buyer"
    assert buyer.check_log().size == buyer.heads[-1].size
    reply = http.get("/sign-in", follow_redirects=False)
    assert "secure" in reply.headers["set-cookie"].lower()
    assert reply.headers["strict-transport-security"] == "max-age=31536000"
    assert http.post("/v1/register", content=b"x" * 1_100_000).status_code == 413


def test_only_the_proxy_says_where_somebody_is(behind: tuple[BrokerProcess, str, ssl.SSLContext]) -> None:
    server, url, trusted = behind
    request = {"X-Forwarded-For": "203.0.113.9", "X-Request-Id": "through-the-proxy"}
    httpx.get(f"{url}/health", headers=request, verify=trusted, timeout=60)  # nginx replaces what the caller claims
    deadline = time.monotonic() + 60
    while "through-the-proxy" not in server.log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (line,) = [one for one in server.log.read_text().splitlines() if "through-the-proxy" in one]
    assert re.search(r'"from": "127\.0\.0\.1"', line), line


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    unit = EXAMPLE.with_name("privmarket.service").read_text()

    def complaints(text: str) -> str:
        (tmp_path / "privmarket.service").write_text(text.replace("/opt/privmarket/bin/privmarket", "/bin/true"))
        words = [analyze, "verify", str(tmp_path / "privmarket.service")]
        return subprocess.run(words, capture_output=True, text=True).stderr

    assert complaints(unit) == ""
    assert "Restrat" in complaints(unit.replace("Restart=", "Restrat="))  # what it does not know it names
