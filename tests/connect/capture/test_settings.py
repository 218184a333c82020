"""Settings of a capture, from Python and from TOML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millstream.connect.capture.settings import CaptureSettings, load_settings
from millstream.errors import ConfigError

GIVEN: dict[str, Any] = {"name": "shop", "database": "dbname=x", "tables": ["public.*"]}


def settings(**changes: Any) -> CaptureSettings:
    return CaptureSettings(**GIVEN | changes)


def test_names_follow_from_the_captures_name() -> None:
    chosen = settings(name="Shop-1.a")
    assert chosen.slot == chosen.publication == "millstream_shop_1_a"
    assert chosen.topic_of("public", "my orders") == "Shop-1.a.public.my_orders"
    assert chosen.position_topic == "Shop-1.a.capture"
    assert chosen.transactional_id == "millstream-capture-Shop-1.a"


def test_topics_of_tables_keep_all_records_unless_the_settings_choose() -> None:
    chosen = settings(topic_settings={"max.message.bytes": "9"})
    assert chosen.settings_of_topic("shop.public.a") == {
        "retention.ms": "-1",
        "max.message.bytes": "9",
    }
    assert chosen.settings_of_topic("shop.message") == {"max.message.bytes": "9"}
    for given in ({"retention.ms": "5"}, {"cleanup.policy": "compact"}):
        assert settings(topic_settings=given).settings_of_topic("shop.public.a") == given


def test_patterns_select_and_exclude_tables() -> None:
    chosen = settings(tables=["public.*", "sales.order?", "!public.secret*"])
    tables = ["public.a", "public.secrets", "sales.orders", "sales.order_items", "other.a"]
    assert [it for it in tables if chosen.captures(*it.split("."))] == ["public.a", "sales.orders"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "a b"}, "name 'a b'"),
        ({"slot": "Upper"}, "slot 'Upper'"),
        ({"tables": "public.*"}, "write a list"),
        ({"tables": []}, "write a list"),
        ({"tables": ["orders"]}, "as schema.table"),
        ({"shape": "round"}, "shape is 'round'; it must be one of debezium, flat"),
        ({"compression": "zip"}, "one of none, gzip"),
        ({"format": "avro"}, "a schema registry is needed"),
        ({"topic": "{name}"}, "needs {table}"),
        ({"topic": "{name}.{tabel}.{table}"}, r"unknown field {tabel}; known: {name}, {schema}"),
        ({"topic": "{name}.{table"}, "topic '{name}.{table': expected '}'"),
        ({"chunk_rows": 0}, "chunk_rows must be at least 1"),
        ({"heartbeat_seconds": 0}, "heartbeat_seconds must be more than 0"),
        ({"tables": [1]}, "write a list"),
        ({"name": 5}, "name must be a string"),
        ({"database": 5}, "database must be a string"),
        ({"metrics": 9404}, "metrics must be a string"),
        ({"partitions": "3"}, "partitions must be an integer"),
        ({"chunk_rows": True}, "chunk_rows must be an integer"),
        ({"snapshot_workers": 1.5}, "snapshot_workers must be an integer"),
        ({"manage_publication": "no"}, "manage_publication must be true or false"),
        ({"heartbeat_seconds": "10"}, "heartbeat_seconds must be a number"),
        ({"lag_alarm_bytes": "1GB"}, "lag_alarm_bytes must be an integer"),
        ({"topic_settings": {"retention.ms": 1000}}, "topic_settings must be a table of strings"),
        ({"topic_settings": 5}, "topic_settings must be a table of strings"),
    ],
)
def test_wrong_settings_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings(**changes)


def test_number_of_seconds_may_be_an_integer() -> None:
    assert settings(heartbeat_seconds=10).heartbeat_seconds == 10


def test_envelope_has_the_names_of_the_source() -> None:
    envelope = settings(transactions=True, decimals="precise").envelope("shopdb")
    assert (envelope.server_name, envelope.database) == ("shop", "shopdb")
    assert envelope.transaction_metadata
    assert envelope.decimals == "precise"
    assert envelope.registry is None
    avro = settings(format="avro", registry="http://a:1, http://b:2", registry_user_info="u:p")
    found = avro.envelope("shopdb").registry
    assert found is not None
    assert (found.urls, found.user_info) == (("http://a:1", "http://b:2"), "u:p")


def test_file_is_read_with_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "s3cret")
    path = tmp_path / "capture.toml"
    path.write_text(
        'name = "shop"\ndatabase = "password=${SHOP_PASSWORD}"\ntables = ["public.orders"]\n'
        'partitions = 3\n[topic_settings]\n"cleanup.policy" = "compact"\n'
    )
    chosen = load_settings(path)
    assert chosen.database == "password=s3cret"
    assert chosen.partitions == 3
    assert chosen.topic_settings == {"cleanup.policy": "compact"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = ", "Invalid value"),
        ('name = "a"\ntables = ["a.b"]', "database is missing"),
        ('colour = "red"', "unknown setting colour"),
        (
            'name = "a"\ndatabase = ""\ntables = ["a.b"]\nsecurity = "SSL"',
            "security must be a table",
        ),
        ('name = "a"\ndatabase = "${NOT_SET}"\ntables = ["a.b"]', "no variable NOT_SET"),
        (
            'name = "a"\ndatabase = ""\ntables = ["a.b"]\n[security]\nuser = "x"',
            "unknown setting security.user",
        ),
    ],
)
def test_mistakes_in_a_file_name_the_file(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "capture.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as refused:
        load_settings(path)
    assert str(refused.value).startswith(str(path))


def test_settings_file_of_a_client_gives_security_and_brokers(tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    start = 'name = "a"\ndatabase = ""\ntables = ["a.b"]\n'
    file.write_text(start + 'client_config = "client.properties"\n')
    (tmp_path / "client.properties").write_text(
        "bootstrap.servers=secure:9093\nsecurity.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n"
        "sasl.jaas.config=x.PlainLoginModule required username=ann password=s3cret;\n"
    )
    found = load_settings(file)
    assert found.broker == "secure:9093"
    assert found.security == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "ann",
        "sasl.password": "s3cret",
    }
    assert "s3cret" not in repr(found)
    file.write_text(start + 'broker = "a:1"\n[security]\n"security.protocol" = "SSL"\n')
    assert load_settings(file).security == {"security.protocol": "SSL"}
    given = load_settings(file, tmp_path / "client.properties")
    assert (given.broker, given.security) == ("a:1", found.security)
