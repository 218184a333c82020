"""All listeners of a broker: certificates that change, principals of certificates, open doors."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from millstream import Broker
from millstream.broker.network import listeners as module
from millstream.broker.network.listeners import open_to_all
from millstream.broker.security.listeners import ListenerSecurity
from millstream.config.broker import BrokerConfig
from millstream.errors import MillstreamError
from millstream.security.login import make_login
from tests.broker.pki import Pki, make_pki
from tests.broker.security.test_jwks import Endpoint, key_set
from tests.broker.serving import serving
from tests.peers.patience import PATIENCE_SECONDS, wait_until
from tests.peers.servers import Server, free_port, start_millstream
from tests.peers.wire import ConnectionEnded, Wire, request_frame
from tests.security.test_tokens import CLAIMS, sign


def certificate_at(address: str, pki: Pki) -> bytes | None:
    """The certificate that a new connection gets; None if this authority has not signed it."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), PATIENCE_SECONDS) as raw:
        try:
            with pki.client_context().wrap_socket(raw, server_hostname=host) as connection:
                return connection.getpeercert(binary_form=True)
        except ssl.SSLCertVerificationError:
            return None


@pytest.fixture
def old(tmp_path: Path) -> Pki:
    return make_pki(tmp_path, name="old")


@pytest.fixture
def new(tmp_path: Path) -> Pki:
    return make_pki(tmp_path, name="new")


@contextlib.contextmanager
def open_connection(address: str, pki: Pki) -> Iterator[Wire]:
    """A connection with TLS that stays open."""
    with Wire(address) as wire:
        host = address.rpartition(":")[0]
        wire.socket = pki.client_context().wrap_socket(wire.socket, server_hostname=host)
        assert wire.call("api_versions", 0).error_code == 0
        yield wire


def replace(store: Path, content: str) -> None:
    """As tools do that renew certificates: in one step."""
    temporary = store.with_suffix(".new")
    temporary.write_text(content)
    temporary.replace(store)


def test_changed_file_is_used_without_dropping_connections(
    old: Pki, new: Pki, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FILES_CHECKED_SECONDS", 0.05)
    config = {"listeners": "SSL://127.0.0.1:0", **old.settings}
    with (
        Broker.start(config=config) as broker,
        open_connection(broker.bootstrap_servers, old) as wire,
    ):
        replace(old.broker_store, "broken")
        time.sleep(0.2)
        assert certificate_at(broker.bootstrap_servers, old) is not None
        replace(old.broker_store, new.broker_store.read_text())
        wait_until(lambda: certificate_at(broker.bootstrap_servers, new) is not None)
        assert certificate_at(broker.bootstrap_servers, old) is None
        assert wire.call("api_versions", 0).error_code == 0


def test_files_are_watched_after_an_error_too(
    old: Pki, new: Pki, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FILES_CHECKED_SECONDS", 0.05)
    refresh, failed = ListenerSecurity.refresh, threading.Event()

    def fail_once(security: ListenerSecurity, *, is_forced: bool = False) -> None:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("a bug")
        refresh(security, is_forced=is_forced)

    monkeypatch.setattr(ListenerSecurity, "refresh", fail_once)
    config = {"listeners": "SSL://127.0.0.1:0", **old.settings}
    with Broker.start(config=config) as broker:
        assert failed.wait(PATIENCE_SECONDS)
        replace(old.broker_store, new.broker_store.read_text())
        wait_until(lambda: certificate_at(broker.bootstrap_servers, new) is not None)


def test_requests_under_way_survive_a_change(old: Pki, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four connections send without a pause while the certificate changes twenty times."""
    monkeypatch.setattr(module, "FILES_CHECKED_SECONDS", 0.01)
    config = {"listeners": "SSL://127.0.0.1:0", **old.settings}
    stop = threading.Event()
    answered = [0] * 4
    with Broker.start(config=config) as broker:

        def ask(number: int) -> None:
            with open_connection(broker.bootstrap_servers, old) as wire:
                while not stop.is_set():
                    assert wire.call("metadata", 1, topics=None).brokers
                    answered[number] += 1

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        wait_until(lambda: all(answered))
        seen = set()
        for _ in range(20):
            fresh = old.authority.sign("broker", old.now, hosts=["127.0.0.1"])
            replace(old.broker_store, fresh.pem)
            expected = ssl.PEM_cert_to_DER_cert(fresh.certificate)
            wait_until(lambda: certificate_at(broker.bootstrap_servers, old) == expected)  # noqa: B023
            seen.add(expected)
        before = list(answered)
        wait_until(lambda: all(now > then for now, then in zip(answered, before, strict=True)))
        stop.set()
        for thread in threads:
            thread.join()
    assert len(seen) == 20


def test_hangup_reads_certificates_again(old: Pki, new: Pki, tmp_path: Path) -> None:
    port = free_port()
    settings = {"listeners": f"SSL://127.0.0.1:{port}", **old.settings}
    server: Server = start_millstream(tmp_path / "data", settings, port=port)
    try:
        address = f"127.0.0.1:{port}"
        with open_connection(address, old) as wire:
            replace(old.broker_store, new.broker_store.read_text())
            os.kill(server.process.pid, signal.SIGHUP)
            wait_until(lambda: certificate_at(address, new) is not None)
            assert wire.call("api_versions", 0).error_code == 0
    finally:
        server.stop()


@pytest.fixture
def identity_provider() -> Iterator[Endpoint]:
    made = Endpoint()
    yield made
    made.close()


def tokens_of(endpoint: Endpoint) -> dict[str, str]:
    return {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": endpoint.url,
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": "1000",
    }


def test_connections_are_accepted_when_the_keys_of_tokens_are_there(
    identity_provider: Endpoint,
) -> None:
    identity_provider.status = 302  # of the first answer
    identity_provider.content = key_set("rsa")
    with Broker.start(config=tokens_of(identity_provider)):
        assert identity_provider.count == 2


def test_client_is_disconnected_and_not_refused_without_keys(
    identity_provider: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEYS_WAITED_SECONDS", 0.1)
    identity_provider.status = 500
    with (
        Broker.start(config=tokens_of(identity_provider)) as broker,
        Wire(broker.bootstrap_servers) as wire,
    ):
        login = make_login("OAUTHBEARER", token=sign(CLAIMS, "rsa"))
        wire.call("sasl_handshake", 1, mechanism=login.mechanism)
        with pytest.raises((ConnectionEnded, ConnectionResetError)):
            wire.call("sasl_authenticate", 2, auth_bytes=login.begin())


def alter(broker: Broker, name: str, value: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.addresses["PLAINTEXT"]})
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_SECONDS)


def test_altered_settings_are_used_and_broken_ones_refused(old: Pki, new: Pki) -> None:
    listeners = "SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0"
    with Broker.start(config={"listeners": listeners, **old.settings}) as broker:
        name = "listener.name.ssl.ssl.keystore.location"
        with pytest.raises(Exception, match="No such file"):
            alter(broker, name, "/no/such/file.pem")
        assert certificate_at(broker.addresses["SSL"], old) is not None
        alter(broker, name, str(new.broker_store))
        wait_until(lambda: certificate_at(broker.addresses["SSL"], new) is not None)
        broker.restart()
        assert certificate_at(broker.addresses["SSL"], new) is not None


def test_settings_that_fail_reach_the_other_subscribers(
    old: Pki, new: Pki, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(ListenerSecurity, "configure", fail)
    listeners = "SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0"
    with Broker.start(config={"listeners": listeners, **old.settings}) as broker:
        alter(broker, "listener.name.ssl.ssl.keystore.location", str(new.broker_store))
        wait_until(lambda: "the new settings of listeners cannot be used" in caplog.text)


def test_secrets_are_not_described(old: Pki) -> None:
    listeners = "SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0"
    config = {
        "listeners": listeners,
        "ssl.key.password": "hunter2",
        "listener.name.ssl.ssl.key.password": "hunter2",
        **old.settings,
    }
    with Broker.start(config=config) as broker:
        admin = AdminClient({"bootstrap.servers": broker.addresses["PLAINTEXT"]})
        resource = ConfigResource(ResourceType.BROKER, "1")
        entries = admin.describe_configs([resource])[resource].result(PATIENCE_SECONDS)
        for name in ("ssl.key.password", "listener.name.ssl.ssl.key.password"):
            assert entries[name].value is None
            assert entries[name].is_sensitive
        location = entries["ssl.keystore.location"]
        assert location.value == str(old.broker_store)
        assert "hunter2" not in repr([vars(entry) for entry in entries.values()])


def principal_of(
    directory: Path, pki: Pki, *, with_certificate: bool, **settings: object
) -> str | None:
    """Whom the broker takes a client for; None if it closes the connection."""

    async def scenario() -> str | None:
        values: dict[str, object] = {"listeners": "SSL://127.0.0.1:0", **settings}
        values |= {name.replace(".", "_"): value for name, value in pki.settings.items()}
        async with serving(directory, **values) as server:
            context = pki.client_context(with_certificate=with_certificate)
            host, port = server.addresses[0]
            try:
                reader, writer = await asyncio.open_connection(host, port, ssl=context)
                writer.write(request_frame("api_versions", 0))
                if not await reader.read(4):
                    return None
            except OSError:
                return None
            (connection,) = server.connections._open
            writer.close()
            return str(connection._client.principal)

    return asyncio.run(asyncio.wait_for(scenario(), PATIENCE_SECONDS))


@pytest.mark.parametrize(
    ("auth", "with_certificate", "rules", "principal"),
    [
        ("required", True, "DEFAULT", "User:CN=client"),
        ("required", True, "RULE:^CN=(.*)$/$1/U", "User:CLIENT"),
        ("required", True, "RULE:^OU=.*$/x/", None),
        ("required", False, "DEFAULT", None),
        ("requested", True, "DEFAULT", "User:CN=client"),
        ("requested", False, "RULE:^OU=.*$/x/", "User:ANONYMOUS"),
        ("none", True, "DEFAULT", "User:ANONYMOUS"),
    ],
)
def test_principal_is_the_name_in_the_certificate(
    old: Pki,
    tmp_path: Path,
    auth: str,
    with_certificate: bool,
    rules: str,
    principal: str | None,
) -> None:
    found = principal_of(
        tmp_path / "data",
        old,
        with_certificate=with_certificate,
        ssl_client_auth=auth,
        ssl_principal_mapping_rules=rules,
    )
    assert found == principal


def test_certificate_that_no_rule_maps_is_in_the_audit(old: Pki, tmp_path: Path) -> None:
    audit = tmp_path / "audit.log"
    found = principal_of(
        tmp_path / "data",
        old,
        with_certificate=True,
        ssl_client_auth="required",
        ssl_principal_mapping_rules="RULE:^OU=.*$/x/",
        millstream_audit_log=f"file:{audit}",
    )
    assert found is None
    assert '"SSL"' in audit.read_text()


def test_mapping_that_fails_lets_nobody_in(
    old: Pki, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise TypeError("a bug")

    monkeypatch.setattr("millstream.broker.security.tls.subject_name", fail)
    found = principal_of(tmp_path / "data", old, with_certificate=True, ssl_client_auth="required")
    assert found is None
    assert "authentication failed: a bug" in caplog.text


def test_certificate_of_another_authority_is_refused(old: Pki, new: Pki, tmp_path: Path) -> None:
    mixed = dataclasses.replace(old, client_store=new.client_store)
    found = principal_of(
        tmp_path / "data", mixed, with_certificate=True, ssl_client_auth="requested"
    )
    assert found is None


def test_listener_that_cannot_open_names_what_is_missing() -> None:
    with pytest.raises(MillstreamError, match=r"listener SSL: TLS needs a certificate"):
        Broker.start(config={"listeners": "SSL://127.0.0.1:0"})


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({"listeners": "PLAINTEXT://127.0.0.1:9092"}, None),
        ({"listeners": "PLAINTEXT://localhost:9092"}, None),
        ({"listeners": "PLAINTEXT://[::1]:9092"}, None),
        ({"listeners": "PLAINTEXT://:9092"}, "OPEN TO EVERYONE"),
        ({"listeners": "PLAINTEXT://0.0.0.0:9092"}, "OPEN TO EVERYONE"),
        ({"listeners": "PLAINTEXT://10.0.0.1:9092"}, "OPEN TO EVERYONE"),
        ({"listeners": "PLAINTEXT://:9092", "ssl.client.auth": "required"}, "OPEN TO EVERYONE"),
        ({"listeners": "SSL://:9092"}, "clients need no certificate"),
        ({"listeners": "SSL://:9092", "ssl.client.auth": "requested"}, "clients need no"),
        ({"listeners": "SSL://:9092", "ssl.client.auth": "required"}, None),
        ({"listeners": "SASL_PLAINTEXT://:9092"}, "is not encrypted"),
        ({"listeners": "SASL_SSL://:9092"}, None),
    ],
)
def test_listener_without_protection_is_warned_about(
    settings: dict[str, str], warned: str | None
) -> None:
    warnings = open_to_all(BrokerConfig.from_values(settings))
    assert len(warnings) == (0 if warned is None else 1)
    assert warned is None or warned in warnings[0]


def test_warning_is_logged_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    with Broker.start(config={"listeners": "PLAINTEXT://0.0.0.0:0"}):
        said = [it for it in caplog.records if "OPEN TO EVERYONE" in it.getMessage()]
    assert len(said) == 1
    assert said[0].levelname == "WARNING"
