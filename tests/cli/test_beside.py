"""`millstream serve --console`: the console of the broker beside it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from millstream.cli.beside import chosen_listener, connection_to, reachable
from millstream.client.cluster import Cluster
from millstream.client.topics import NewTopic, create_topics
from millstream.config.broker import BrokerConfig
from millstream.console.navigation import NAVIGATION
from millstream.console.server import TIDY_SECONDS, ConsoleServer
from millstream.console.settings import ConsoleSettings
from millstream.errors import ConfigError
from millstream.security.protocol import SecurityProtocol
from tests.broker.pki import make_pki
from tests.cli.conftest import Run
from tests.peers.patience import PATIENCE_SECONDS

MILLSTREAM = str(Path(sys.executable).with_name("millstream"))
PLAINTEXT, SSL, SASL, SASL_SSL = (
    SecurityProtocol[name] for name in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
)
UNOPENED_BYTES_MAX = 8 * 1024 * 1024  # measured: 6.0 MB
OPENED_BYTES_MAX = 12 * 1024 * 1024  # the limit; measured: 10.7 MB


def test_listener_is_one_where_users_log_in_if_rights_count() -> None:
    both = {"INTERNAL": PLAINTEXT, "CLIENTS": SASL_SSL, "TLS": SSL}
    assert chosen_listener(both, needs_log_in=False) == ("INTERNAL", PLAINTEXT)
    assert chosen_listener(both, needs_log_in=True) == ("CLIENTS", SASL_SSL)
    assert chosen_listener({"TLS": SSL}, needs_log_in=True) == ("TLS", SSL)


def test_connection_uses_the_authorities_of_the_broker(tmp_path: Path) -> None:
    config = BrokerConfig.from_values(
        {
            "listeners": "SASL_SSL://0.0.0.0:9093",
            "log.dirs": str(tmp_path),
            "ssl.truststore.location": "authority.pem",
        }
    )
    found = connection_to(config, {"SASL_SSL": "0.0.0.0:9093"}, None)
    assert found.bootstrap_servers == "127.0.0.1:9093"
    assert found.client_settings == {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": "authority.pem",
    }


def test_connection_that_needs_a_certificate_is_refused(tmp_path: Path) -> None:
    values = {"listeners": "SSL://h:9093", "log.dirs": str(tmp_path), "ssl.client.auth": "required"}
    config = BrokerConfig.from_values(values)
    with pytest.raises(ConfigError, match="--console-client-config"):
        connection_to(config, {"SSL": "h:9093"}, None)
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SSL\nssl.certificate.location=me.pem\n")
    found = connection_to(config, {"SSL": "h:9093"}, file)
    assert found.bootstrap_servers == "h:9093"
    assert found.client_settings["ssl.certificate.location"].endswith("me.pem")
    file.write_text("security.protocol=SASL_SSL\n")
    with pytest.raises(ConfigError, match=r"no listener has security\.protocol SASL_SSL"):
        connection_to(config, {"SSL": "h:9093"}, file)


def test_address_of_all_interfaces_is_the_loopback() -> None:
    assert reachable("0.0.0.0:1") == reachable(":1") == "127.0.0.1:1"
    assert reachable("h:1") == "h:1"


def serve(*options: str, directory: Path) -> subprocess.Popen[str]:
    command = [MILLSTREAM, "serve", "--listen", "127.0.0.1:0", "--data", str(directory / "data")]
    return subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("workers", [(), ("--workers", "2")], ids=["one", "workers"])
def test_console_is_served_and_stops_with_the_broker(
    workers: tuple[str, ...], tmp_path: Path
) -> None:
    process = serve("--console", "127.0.0.1:0", *workers, directory=tmp_path)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("millstream is ready on 127.0.0.1:")
        where = process.stdout.readline()
        assert where.startswith("console at http://127.0.0.1:")
        with urllib.request.urlopen(where.split()[-1] + "?format=json") as answer:
            assert json.load(answer)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        process.kill()
        process.communicate()


def test_address_in_use_stops_the_start(run: Run, tmp_path: Path) -> None:
    process = serve("--console", "127.0.0.1:0", directory=tmp_path)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        taken = process.stdout.readline().split("//")[1].strip().rstrip("/")
        second = run("serve", "--data", str(tmp_path / "other"), "--console", taken)
        assert second.exit_code == 1
        assert f"cannot listen on {taken}" in second.err
    finally:
        process.kill()
        process.communicate()


def test_console_has_tls_and_names_of_its_own(run: Run, tmp_path: Path) -> None:
    pki = make_pki(tmp_path / "pki")
    console, tls = ("--console", "127.0.0.1:0"), "--console-tls-certificate"
    names = ("--console-allow-host", "kafka.example")
    process = serve(*console, tls, str(pki.broker_store), *names, directory=tmp_path)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        where = process.stdout.readline().split()[-1]
        assert where.startswith("https://127.0.0.1:")
        context = pki.client_context()
        for name, expected in (("kafka.example", 200), ("other.example", 421)):
            request = urllib.request.Request(where + "static/icon.svg", headers={"Host": name})
            try:
                status = urllib.request.urlopen(request, context=context).status
            except urllib.error.HTTPError as error:
                status = error.code
            assert status == expected
    finally:
        process.kill()
        process.communicate()
    refused = run("serve", "--data", str(tmp_path / "d"), *console, tls, str(pki.authority_file))
    assert refused.exit_code == 1
    assert f"cannot use the certificate of {pki.authority_file}" in refused.err


def test_console_needs_little_memory(tmp_path: Path) -> None:
    """Private memory of a broker in use, as far as it differs by the console that nobody has
    opened yet. Its sampler asks for groups, as any client may."""
    sizes = [memory_of(tmp_path, *options)[0] for options in ((), ("--console", "127.0.0.1:0"))]
    assert sizes[1] - sizes[0] < UNOPENED_BYTES_MAX, sizes


@pytest.mark.slow
def test_console_needs_little_memory_with_all_pages_open(tmp_path: Path) -> None:
    """Compared with a broker that has answered the same requests, of a console elsewhere."""
    settled = 2 * TIDY_SECONDS  # by then the console has returned what importing its pages left
    sizes = [
        memory_of(tmp_path, *options, settle_seconds=settled)[1]
        for options in ((), ("--console", "127.0.0.1:0"))
    ]
    assert sizes[1] - sizes[0] < OPENED_BYTES_MAX, sizes


def memory_of(directory: Path, *options: str, settle_seconds: float = 0.0) -> tuple[int, int]:
    """Of a broker, before and after all pages of its console, or of another one, were opened."""
    process = serve(*options, directory=directory / str(len(options)))
    elsewhere = None
    try:
        assert process.stdout is not None
        servers = process.stdout.readline().partition("ready on ")[2].partition(",")[0]
        with Cluster(servers) as cluster:
            cluster.refresh()
            cluster.ask_broker(1, "list_groups", {})
            create_topics(cluster, [NewTopic("orders", 3)])
        if options:
            where = process.stdout.readline().split()[-1]
        before = psutil.Process(process.pid).memory_full_info().uss
        if not options:
            elsewhere = ConsoleServer(ConsoleSettings(servers), "127.0.0.1:0")
            elsewhere.start()
            where = elsewhere.url
        for path in (
            *(it.path[1:] for it in NAVIGATION),
            "topics/orders",
            "topics/orders/messages",
        ):
            with urllib.request.urlopen(where + path) as answer:
                assert answer.status == 200
        time.sleep(settle_seconds)
        return before, psutil.Process(process.pid).memory_full_info().uss
    finally:
        if elsewhere is not None:
            elsewhere.stop()
        process.kill()
        process.communicate()


def test_console_that_others_reach_does_not_avoid_a_log_in(tmp_path: Path) -> None:
    values = {
        "listeners": "INTERNAL://127.0.0.1:9092,CLIENTS://0.0.0.0:9093",
        "listener.security.protocol.map": "INTERNAL:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
        "inter.broker.listener.name": "INTERNAL",
        "log.dirs": str(tmp_path),
    }
    config = BrokerConfig.from_values(values)
    addresses = {"INTERNAL": "127.0.0.1:9092", "CLIENTS": "0.0.0.0:9093"}
    assert connection_to(config, addresses, None).bootstrap_servers == "127.0.0.1:9092"
    found = connection_to(config, addresses, None, is_reachable=True)
    assert found.bootstrap_servers == "127.0.0.1:9093"
    assert found.client_settings == {"security.protocol": "SASL_PLAINTEXT"}


def test_registry_of_the_settings_is_kept(tmp_path: Path) -> None:
    config = BrokerConfig.from_values({"listeners": "PLAINTEXT://h:1", "log.dirs": str(tmp_path)})
    file = tmp_path / "client.properties"
    file.write_text("schema.registry.url=http://r:8081\n")
    found = connection_to(config, {"PLAINTEXT": "h:1"}, file)
    assert found.client_settings["schema.registry.url"] == "http://r:8081"
