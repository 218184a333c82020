"""Letters: composed from columns, and sent to a topic that is created when it is first needed."""

from __future__ import annotations

from millstream.client.cluster import Cluster
from millstream.connect.dead_letters import (
    bytes_at,
    compose,
    headers_at,
    partition_count,
    send_letters,
)
from millstream.records.columns import decode_columns
from millstream.records.record import Record, encode_batch
from millstream.testing.pytest_plugin import SharedBroker
from tests.connect.sinks.letters import letters_in


def test_parts_of_a_record_are_found_by_its_row() -> None:
    records = [
        Record(5, 0, b"k", None, (("a", b"1"), ("b", None))),
        Record(6, 0, None, b"v"),
        Record(7, 0, b"", b"", (("c", b""),)),
    ]
    columns = decode_columns(encode_batch(records), with_headers=True)
    for row, record in enumerate(records):
        assert bytes_at(columns.keys, row) == record.key
        assert bytes_at(columns.values, row) == record.value
        assert headers_at(columns, row) == record.headers
    assert headers_at(columns._replace(headers=None), 0) == ()


def test_letters_are_written_to_a_topic_that_did_not_exist(millstream: SharedBroker) -> None:
    topic = millstream.unique_topic("dlq")
    columns = decode_columns(encode_batch([Record(0, 0, b"k", b"v"), Record(1, 0, None, b"w")]))
    letters = list(compose("orders", 3, columns, [(1, "malformed", "no")], "shop"))
    with Cluster(millstream.bootstrap_servers) as cluster:
        assert partition_count(cluster, topic) == 1
        send_letters(cluster, topic, 0, letters)
    found = letters_in(millstream.bootstrap_servers, topic, 1)
    assert found == [("malformed", "orders", "3", "1", "shop", b"w")]
