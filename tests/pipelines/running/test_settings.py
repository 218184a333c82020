"""Sources of settings, their order, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.running.settings import load_settings


def write(directory: Path, text: str) -> Path:
    (directory / "millstream.toml").write_text(text)
    return directory


def test_later_source_wins(tmp_path: Path) -> None:
    write(tmp_path, 'broker = "file:1"\nstore = "file"\nmaster = "local[3]"\n')
    environment = {"MILLSTREAM_BOOTSTRAP_SERVERS": "variable:1", "MILLSTREAM_STORE": "variable"}
    found = load_settings(tmp_path, environment, {"broker": "argument:1", "store": None})
    assert (found.broker, found.store, found.master) == ("argument:1", "variable", "local[3]")


def test_settings_without_any_source_are_embedded(tmp_path: Path) -> None:
    found = load_settings(tmp_path, {})
    assert found.is_embedded
    assert found.store_url == f"sqlite:///{tmp_path}/.millstream/store.db"
    assert found.broker_data == tmp_path / ".millstream" / "broker"


def test_home_is_relative_to_the_file(tmp_path: Path) -> None:
    write(tmp_path, 'home = "data"\n')
    assert load_settings(tmp_path, {}).home == tmp_path / "data"


def test_sections_nest_or_not(tmp_path: Path) -> None:
    write(
        tmp_path,
        '[kafka]\n"security.protocol" = "SSL"\nssl.ca.location = "ca.pem"\n'
        "[spark.sql.shuffle]\npartitions = 4\n[spark.ui]\nenabled = true\n",
    )
    found = load_settings(tmp_path, {}, {"broker": "host:9"})
    assert found.spark == {"spark.sql.shuffle.partitions": "4", "spark.ui.enabled": "true"}
    assert found.kafka_options() == {
        "kafka.bootstrap.servers": "host:9",
        "kafka.security.protocol": "SSL",
        "kafka.ssl.ca.location": "ca.pem",
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('brokr = "x"', "setting brokr is not known; did you mean broker"),
        ('[kafka]\n"security.protcol" = "SSL"', "did you mean security.protocol"),
        ("broker = 9092", "broker must be a text"),
        ('create_topics = "yes"', "create_topics must be true or false"),
        ("spark_shortcuts = 0", "spark_shortcuts must be true or false"),
        ("kafka = 3", r"kafka must be a section: \[kafka\]"),
        ("broker = ", "is not TOML"),
    ],
)
def test_file_that_makes_no_sense_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_settings(write(tmp_path, text), {})


def test_shortcuts_are_turned_off_in_the_file_or_in_the_environment(tmp_path: Path) -> None:
    assert load_settings(tmp_path, {}).spark_shortcuts
    off = {"MILLSTREAM_SPARK_SHORTCUTS": "false"}
    assert not load_settings(tmp_path, off).spark_shortcuts
    assert load_settings(tmp_path, {}).publish_status
    assert not load_settings(tmp_path, {"MILLSTREAM_PUBLISH_STATUS": "False"}).publish_status
    with pytest.raises(ConfigError, match="MILLSTREAM_PUBLISH_STATUS=maybe"):
        load_settings(tmp_path, {"MILLSTREAM_PUBLISH_STATUS": "maybe"})
    write(tmp_path, "spark_shortcuts = false")
    assert not load_settings(tmp_path, {}).spark_shortcuts
    assert load_settings(tmp_path, {"MILLSTREAM_SPARK_SHORTCUTS": "true"}).spark_shortcuts
    with pytest.raises(
        ConfigError, match="MILLSTREAM_SPARK_SHORTCUTS=no: it must be true or false"
    ):
        load_settings(tmp_path, {"MILLSTREAM_SPARK_SHORTCUTS": "no"})


def test_what_is_required_is_asked_for_by_name(tmp_path: Path) -> None:
    found = load_settings(tmp_path, {})
    with pytest.raises(ConfigError, match="MILLSTREAM_BOOTSTRAP_SERVERS"):
        found.required_broker()
    with pytest.raises(ConfigError, match="MILLSTREAM_CHECKPOINT"):
        found.required_checkpoint()


def test_argument_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="setting chekpoint is not known; did you mean checkp"):
        load_settings(tmp_path, {}, {"chekpoint": "x"})


CLIENT = (
    "bootstrap.servers=secure:9093\nlinger.ms=5\nsecurity.protocol=SASL_SSL\n"
    "sasl.mechanism=PLAIN\nsasl.jaas.config=x.PlainLoginModule required username=ann "
    "password=s3cret;\n"
)


def test_settings_file_of_a_client_gives_security_and_brokers(tmp_path: Path) -> None:
    (tmp_path / "client.properties").write_text(CLIENT)
    write(tmp_path, 'client_config = "client.properties"\n')
    found = load_settings(tmp_path, {})
    assert found.kafka_options() == {
        "kafka.bootstrap.servers": "secure:9093",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": "ann",
        "kafka.sasl.password": "s3cret",
    }
    assert "s3cret" not in repr(found)
    write(
        tmp_path,
        'client_config = "client.properties"\nbroker = "a:1"\n[kafka.sasl]\nusername = "bob"',
    )
    found = load_settings(tmp_path, {})
    assert (found.broker, found.kafka["sasl.username"]) == ("a:1", "bob")


def test_settings_file_in_the_environment_or_an_argument_replaces_the_others(
    tmp_path: Path,
) -> None:
    write(tmp_path, '[kafka]\n"security.protocol" = "SSL"\n"ssl.ca.location" = "/ca.pem"\n')
    (tmp_path / "client.properties").write_text(CLIENT)
    (tmp_path / "other.properties").write_text("security.protocol=SSL\n")
    environment = {"MILLSTREAM_CLIENT_CONFIG": f"{tmp_path}/client.properties"}
    found = load_settings(tmp_path, environment)
    assert (found.broker, found.kafka["security.protocol"]) == ("secure:9093", "SASL_SSL")
    assert "ssl.ca.location" not in found.kafka
    found = load_settings(
        tmp_path,
        environment | {"MILLSTREAM_BOOTSTRAP_SERVERS": "b:2"},
        {"client_config": tmp_path / "other.properties"},
    )
    assert (found.broker, found.kafka) == ("b:2", {"security.protocol": "SSL"})
    with pytest.raises(ConfigError, match=r"cannot read the settings in .*missing"):
        load_settings(tmp_path, {}, {"client_config": tmp_path / "missing"})
