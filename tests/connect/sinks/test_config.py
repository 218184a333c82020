"""The file of a sink, and what is wrong with others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millstream.connect.sinks.config import TopicConfig, load_config, parse_config, without_password
from millstream.errors import ConfigError

GIVEN: dict[str, Any] = {
    "name": "shop",
    "broker": "127.0.0.1:9092",
    "to": "sqlite:///shop.db",
    "topics": {"shop.public.orders": {"key": "id", "columns": "id long"}},
}


def test_registry_and_pause_are_read() -> None:
    config = parse_config({**GIVEN, "registry": "http://r:1/", "registry_user_info": "a:b"})
    assert config.registry is not None
    assert (config.registry.urls, config.registry.user_info) == (("http://r:1",), "a:b")
    assert (config.pause_seconds, parse_config({**GIVEN, "pause_seconds": 2}).pause_seconds) == (
        None,
        2.0,
    )
    for wrong in ({"pause_seconds": -1}, {"registry": 1}, {"registry": "host"}):
        with pytest.raises(ConfigError):
            parse_config({**GIVEN, **wrong})


def test_file_is_read_with_its_defaults_and_overrides(tmp_path: Path) -> None:
    path = tmp_path / "sink.toml"
    path.write_text(
        'name = "shop"\nbroker = "a:1"\nto = "fts5:///s.db"\nformat = "json"\n'
        '[topics."shop.public.orders"]\nkey = ["id", "line"]\nfields = ["text"]\n'
        '[topics.other]\nkey = "id"\nformat = "debezium"\nfields = "text"\ntable = "t"\n'
        '[kafka]\n"security.protocol" = "SSL"\n'
    )
    config = load_config(path, {"broker": "b:2", "to": None})
    assert (config.broker, config.to, config.kafka) == (
        "b:2",
        "fts5:///s.db",
        {"security.protocol": "SSL"},
    )
    assert config.topics == (
        TopicConfig(
            "shop.public.orders", ("id", "line"), "orders", fields=("text",), format="json"
        ),
        TopicConfig("other", ("id",), "t", fields=("text",)),
    )
    assert config.topics[0].dead_letters == "dlq.shop.public.orders"


def test_settings_file_of_a_client_gives_security_and_brokers(tmp_path: Path) -> None:
    path = tmp_path / "sink.toml"
    path.write_text(
        'name = "shop"\nto = "sqlite:///s.db"\nclient_config = "client.properties"\n'
        '[topics.orders]\nkey = "id"\n[kafka]\n"sasl.username" = "bob"\n'
    )
    (tmp_path / "client.properties").write_text(
        "bootstrap.servers=secure:9093\nacks=all\nsecurity.protocol=SASL_SSL\n"
        "sasl.mechanism=PLAIN\nsasl.username=ann\nsasl.password=s3cret\n"
    )
    (tmp_path / "other.properties").write_text("security.protocol=SSL\n")
    config = load_config(path)
    assert config.broker == "secure:9093"
    assert config.kafka == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "bob",
        "sasl.password": "s3cret",
    }
    assert "s3cret" not in repr(config)
    given = {"client_config": tmp_path / "other.properties", "broker": "b:2"}
    other = load_config(path, given)
    assert (other.broker, other.kafka) == ("b:2", {"security.protocol": "SSL"})
    with pytest.raises(ConfigError, match="broker must be given"):
        load_config(path, {"client_config": tmp_path / "other.properties"})


def test_file_that_is_not_toml_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sink.toml"
    path.write_text("name = ")
    with pytest.raises(ConfigError, match=r"sink\.toml is not TOML"):
        load_config(path)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"sink": "x"}, "unknown name 'sink'; known: name"),
        ({"bad_record": "fail"}, "did you mean 'bad_records'"),
        ({"name": ""}, "name must be given"),
        ({"name": "a b"}, "use letters"),
        ({"to": 5}, "to must be a string"),
        ({"topics": {}}, "topics must be given"),
        ({"topics": {"a": 1}}, "must be tables"),
        ({"topics": {"a": {"table": "a"}}}, "key must name the columns"),
        ({"topics": {"a": {"key": []}}}, "key must name the columns"),
        ({"topics": {"a": {"key": 5}}}, "must be a name, or a list of names"),
        ({"topics": {"a": {"key": "id", "colums": "id int"}}}, "did you mean 'columns'"),
        ({"topics": {"a": {"key": "id", "table": 5}}}, "table must be a string"),
        ({"topics": {"a.t": {"key": "id"}, "b.T": {"key": "id"}}}, "have the table"),
        ({"format": "xml"}, "format is 'xml'"),
        ({"bad_records": "skip"}, "must be one of deadletter, drop, fail"),
        ({"kafka": {"acks": "1"}}, "unknown name 'acks'"),
        ({"patience_seconds": "5"}, "must be a number of seconds"),
        ({"allow_partial": "yes"}, "allow_partial must be true or false"),
    ],
)
def test_mistake_is_named(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_config({**GIVEN, **changes})


def test_password_is_not_shown() -> None:
    assert without_password("postgresql://me:secret@db:5432/shop") == "postgresql://me@db:5432/shop"
    assert without_password("sqlite:///shop.db") == "sqlite:///shop.db"
