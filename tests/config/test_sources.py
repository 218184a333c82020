"""Files, environment and command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.config.sources import (
    from_environment,
    load,
    parse_assignments,
    read_file,
)
from millstream.errors import ConfigError

KAFKAS_OWN_EXAMPLE = """\
# A single node
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL
num.network.threads=3
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
offsets.topic.replication.factor=1
log.retention.hours=168
log.segment.bytes=1073741824
"""


def test_server_properties_of_kafka_are_accepted_with_warnings(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(KAFKAS_OWN_EXAMPLE)
    config = load(file)
    assert config.log_retention_hours == 168
    assert sorted(warning.split()[0] for warning in config.warnings) == [
        "controller.quorum.bootstrap.servers",
        "num.network.threads",
        "process.roles",
    ]


def test_toml_tables_nest_into_names(tmp_path: Path) -> None:
    file = tmp_path / "millstream.toml"
    file.write_text('num.partitions = 3\nlisteners = ["A://h:1"]\n[log.retention]\nhours = 24\n')
    assert read_file(file) == {
        "num.partitions": "3",
        "listeners": "A://h:1",
        "log.retention.hours": "24",
    }


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [("x.toml", b"= 1", "is not TOML"), ("x.properties", b"\xff", "is not UTF-8")],
)
def test_unreadable_file_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=f"{name} {message}"):
        read_file(tmp_path / name)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the settings in .*nowhere: No such file"):
        load(tmp_path / "nowhere")


def test_environment_gives_settings_and_leaves_the_rest_alone() -> None:
    environment = {
        "MILLSTREAM_LOG_RETENTION_HOURS": "24",
        "MILLSTREAM_ACKS_ALL_FLUSH": "false",
        "MILLSTREAM_MILLSTREAM_VERIFY_COMPRESSED": "true",
        "MILLSTREAM_SOMETHING_ELSE": "1",
        "PATH": "/bin",
    }
    assert from_environment(environment) == {
        "log.retention.hours": "24",
        "millstream.acks.all.flush": "false",
        "millstream.verify.compressed": "true",
    }


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=1\nmessage.max.bytes=1\nlog.retention.hours=1\n")
    environment = {"MILLSTREAM_MESSAGE_MAX_BYTES": "2", "MILLSTREAM_LOG_RETENTION_HOURS": "2"}
    config = load(file, environment, {"log.retention.hours": 3})
    assert config.num_partitions == 1
    assert config.message_max_bytes == 2
    assert config.log_retention_hours == 3


def test_assignments_need_a_name_and_a_value() -> None:
    assert parse_assignments(["a.b=c=d", "e="]) == {"a.b": "c=d", "e": ""}
    with pytest.raises(ConfigError, match="write name=value"):
        parse_assignments(["a.b"])
