"""The topic of queries: its settings, and reading it."""

from __future__ import annotations

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.standing.stored import QueryRecord
from millstream.pipelines.standing.topic import new_topic, reading_options, records_of
from millstream.records.columns import decode_columns
from millstream.records.record import Record, encode_batch


def test_topic_has_one_partition_and_the_times_of_the_broker() -> None:
    made = new_topic("searches")
    assert (made.name, made.partitions) == ("searches", 1)
    assert made.settings["message.timestamp.type"] == "LogAppendTime"
    assert made.settings["cleanup.policy"] == "compact"


def test_options_keep_the_broker_and_nothing_of_the_events() -> None:
    given = {"kafka.bootstrap.servers": "a:1", "subscribe": "events", "valueFormat": "json"}
    found = reading_options(given, "searches")
    assert found.bootstrap_servers == "a:1"
    assert found.selection.topics == ("searches",)
    assert found.queries_topic == "searches"
    assert found.value_format == "raw"
    with pytest.raises(ConfigError, match="no broker"):
        reading_options({}, "searches")


def test_records_have_keys_values_and_times() -> None:
    written = [Record(0, 5, b"a", b"{}", ()), Record(1, 6, b"b", None, ())]
    columns = decode_columns(encode_batch(written), first_offset=0, end_offset=2)
    assert list(records_of(columns)) == [
        QueryRecord(0, 5, b"a", b"{}"),
        QueryRecord(1, 6, b"b", None),
    ]
