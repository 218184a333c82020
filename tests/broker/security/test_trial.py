"""Secured brokers in one line."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from millstream import Broker
from millstream.broker.security.trial import TrialSecurity
from millstream.errors import ConfigError
from millstream.security import certificates
from tests.broker.network.test_listener import exchange_records
from tests.peers.patience import PATIENCE_SECONDS

USERS = {"alice": "secret", "bob": 'with "quotes", \\ and = signs'}


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def test_clients_with_the_settings_get_in(protocol: str) -> None:
    users = None if protocol == "PLAINTEXT" else USERS
    with Broker.start(security=protocol, users=users) as broker:
        for user in users or [None]:
            exchange_records(broker.client_settings(user), f"of-{user}", count=10)


@pytest.mark.parametrize("in_process", [True, False])
def test_others_do_not_and_a_restart_changes_nothing(in_process: bool) -> None:
    with Broker.start(security="SASL_SSL", users=USERS, in_process=in_process) as broker:
        good = broker.client_settings()
        assert good["sasl.username"] == "alice"
        broker.restart()
        assert broker.client_settings() == good
        assert AdminClient(good).list_topics(timeout=PATIENCE_SECONDS).brokers
        wrong = {**good, "sasl.password": "wrong", "log_level": "0"}
        with pytest.raises(KafkaException):
            AdminClient(wrong).list_topics(timeout=2)


def test_passwords_are_not_described() -> None:
    with Broker.start(security="SASL_PLAINTEXT", users={"alice": "hunter2"}) as broker:
        admin = AdminClient(broker.client_settings())
        resource = ConfigResource(ResourceType.BROKER, "1")
        entries = admin.describe_configs([resource])[resource].result(PATIENCE_SECONDS)
        assert entries["sasl.jaas.config"].value is None
        assert "hunter2" not in repr([vars(it) for it in entries.values()]) + repr(broker)


def test_certificates_are_private_and_gone_in_the_end() -> None:
    broker = Broker.start(security="SSL", users={"alice": ""})
    store = Path(broker.client_settings("alice")["ssl.key.location"])
    assert store.stat().st_mode & 0o077 == 0
    broker.stop()
    assert not store.parent.exists()


@pytest.mark.parametrize(
    ("security", "users", "message"),
    [
        ("TLS", {}, "must be one of"),
        ("SASL_SSL", {}, "needs users"),
        ("PLAINTEXT", {"a": "b"}, "users need security"),
        ("SASL_PLAINTEXT", {'a="" user_root': "b"}, "names have no blanks, quotes"),
    ],
)
def test_wrong_arguments_are_refused(security: str, users: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrialSecurity(security, users)


def test_nothing_stays_if_certificates_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(certificates, "make_authority", fail)
    with pytest.raises(OSError, match="no space left"):
        TrialSecurity("SSL", {})
    assert not list(tmp_path.iterdir())


def test_wrong_users_and_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="users need security"):
        Broker.start(users=USERS)
    with pytest.raises(ConfigError, match="not both"):
        Broker.start(config={"listeners": "PLAINTEXT://:1"}, security="SASL_SSL", users=USERS)
    with Broker.start() as broker, pytest.raises(ConfigError, match="has no users"):
        broker.client_settings("alice")
    with pytest.raises(ConfigError, match="there is no user 'carol', only alice, bob"):
        TrialSecurity("SASL_PLAINTEXT", USERS).client_settings("carol")
