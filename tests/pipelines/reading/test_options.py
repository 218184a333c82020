"""What `format("millstream")` accepts, and what it says of the rest."""

from __future__ import annotations

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.offsets import EARLIEST, LATEST
from millstream.pipelines.reading.options import Selection, parse_read_options

BASE = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "a, b"}


def test_options_have_sparks_defaults() -> None:
    batch = parse_read_options(BASE, streaming=False)
    stream = parse_read_options(BASE, streaming=True)
    assert batch.selection == Selection(topics=("a", "b"))
    assert (batch.starting.everywhere, batch.ending.everywhere) == (EARLIEST, LATEST)
    assert stream.starting.everywhere == LATEST
    assert batch.read_committed
    assert batch.fail_on_data_loss


def test_options_are_known_in_any_case() -> None:
    options = {name.lower(): value for name, value in BASE.items()}
    options |= {"startingoffsets": "earliest", "MAXOFFSETSPERTRIGGER": "7"}
    read = parse_read_options(options, streaming=True)
    assert read.starting.everywhere == EARLIEST
    assert read.max_offsets_per_trigger == 7


def test_options_take_partitions_timestamps_and_jaas() -> None:
    read = parse_read_options(
        {
            "kafka.bootstrap.servers": "localhost:9092",
            "assign": '{"a": [0, 2]}',
            "startingOffsetsByTimestamp": '{"a": {"0": 1000, "2": 2000}}',
            "startingOffsetsByTimestampStrategy": "latest",
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.jaas.config": 'x.PlainLoginModule required username="u" password="p";',
        },
        streaming=False,
    )
    assert read.selection.partitions == (("a", 0), ("a", 2))
    assert read.starting.timestamps_ms == {("a", 0): 1000, ("a", 2): 2000}
    assert read.starting.when_none_is_as_new == "latest"
    assert (read.security.username, read.security.password) == ("u", "p")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"startingOfsets": "earliest"}, "startingOfsets is not known; did you mean startingOffs"),
        ({"bootstrap.servers": "x:1"}, "not known; did you mean kafka.bootstrap.servers"),
        ({"kafka.retries": "3"}, "option kafka.retries is not known"),
        ({"kafka.auto.offset.reset": "x"}, "has no meaning here; use startingOffsets"),
        ({"groupIdPrefix": "x"}, "groupIdPrefix has no meaning here; use nothing: readers join"),
        ({"kafka.ssl.truststore.location": "x"}, "a JKS store, which only Java reads; convert"),
        ({"kafka.sasl.mechanism": "PLAIN"}, "security.protocol is PLAINTEXT; set it to SASL_SSL"),
        ({"maxOffsetsPerTrigger": "5"}, "makes no sense for a batch, which has no triggers"),
        ({"startingOffsets": "latest"}, "makes no sense for a batch: it would read nothing"),
        ({"startingOffsets": '{"a": {"0": -1}}'}, "of a-0 is -1; it must be an offset, -2 for"),
        ({"endingOffsets": '{"a": {"0": -2}}'}, "of a-0 is -2; it must be an offset, -1 for the"),
        ({"startingOffsetsByTimestampStrategy": "x"}, "is x; it must be one of error, latest"),
        ({"startingTimestamp": "noon"}, "startingTimestamp is 'noon'; it must be a whole number"),
        ({"assign": '{"a": [0]}'}, "subscribe and assign are given: choose one"),
        ({"subscribe": ""}, "none is given: choose one of subscribe"),
        ({"failOnDataLoss": "no"}, "failOnDataLoss is 'no'; it must be true or false"),
        ({"minPartitions": "0"}, "minPartitions is '0'; it must be a whole number of at least 1"),
        ({"kafka.isolation.level": "x"}, "must be one of read_committed, read_uncommitted"),
        ({"valueFormat": "xml"}, "valueFormat is xml; it must be one of raw, json"),
        ({"endingOffsets": "earliest"}, "endingOffsets is 'earliest'"),
    ],
)
def test_options_that_do_not_fit_are_refused_by_name(
    changes: dict[str, str], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_read_options(BASE | changes, streaming=False)


def test_options_of_a_stream_have_no_end() -> None:
    with pytest.raises(ConfigError, match="endingOffsets=latest makes no sense for a stream"):
        parse_read_options(BASE | {"endingOffsets": "latest"}, streaming=True)
    with pytest.raises(ConfigError, match=r"kafka.bootstrap.servers is missing"):
        parse_read_options({"subscribe": "a"}, streaming=True)
    with pytest.raises(ConfigError, match="idleAfter and idleColumn belong together"):
        parse_read_options(BASE | {"idleAfter": "10s"}, streaming=True)
    with pytest.raises(ConfigError, match="idleAfter is 0"):
        parse_read_options(BASE | {"idleAfter": "0s", "idleColumn": "at"}, streaming=True)
    limits = {"minOffsetsPerTrigger": "6", "maxOffsetsPerTrigger": "5"}
    with pytest.raises(ConfigError, match="minOffsetsPerTrigger is 6, more than maxOffsetsPer"):
        parse_read_options(BASE | limits, streaming=True)


def test_options_all_reach_the_reader() -> None:
    given = {
        "startingOffsets": "earliest",
        "minOffsetsPerTrigger": "1",
        "maxOffsetsPerTrigger": "2",
        "maxTriggerDelay": "3s",
        "minPartitions": "4",
        "maxRecordsPerPartition": "5",
        "failOnDataLoss": "false",
        "includeHeaders": "true",
        "kafka.client.id": "me",
        "kafka.group.id": "us",
        "kafka.isolation.level": "read_uncommitted",
        "kafka.max.partition.fetch.bytes": "6",
        "kafka.fetch.max.wait.ms": "7",
        "kafka.request.timeout.ms": "8",
        "kafka.default.api.timeout.ms": "9",
    }
    read = parse_read_options(BASE | given, streaming=True)
    assert (read.min_offsets_per_trigger, read.max_offsets_per_trigger) == (1, 2)
    assert (read.max_trigger_delay_ms, read.min_partitions) == (3000, 4)
    assert read.max_records_per_partition == 5
    assert (read.fail_on_data_loss, read.include_headers, read.read_committed) == (
        False,
        True,
        False,
    )
    assert (read.client_id, read.group_id) == ("me", "us")
    assert (read.fetch_bytes_max, read.fetch_wait_ms) == (6, 7)
    assert (read.request_timeout_ms, read.patience_ms) == (8, 9)


def test_options_keep_passwords_out_of_what_is_printed() -> None:
    secret = {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": "ann",
        "kafka.sasl.password": "hunter2",
    }
    read = parse_read_options(BASE | secret, streaming=True)
    assert read.security.password == "hunter2"
    assert "hunter2" not in repr(read)


def test_options_of_typed_rows_are_known() -> None:
    options = BASE | {"valueFormat": "csv", "mode": "DropMalformed", "sep": ";", "quote": "'"}
    read = parse_read_options(options, streaming=False)
    assert read.mode == "drop"
    assert (read.csv.separator, read.csv.quote, read.csv.escape) == (";", "'", "\\")
    assert read.dead_letters_of("orders") == "dlq.orders"
    assert read.dead_letters_of("dlq.orders") is None
    options = BASE | {"valueFormat": "json", "mode": "deadletter", "deadLetterTopic": "bad"}
    read = parse_read_options(options | {"pipeline": "p", "pipelineVersion": "2"}, streaming=True)
    assert (read.mode, read.dead_letters_of("orders")) == ("deadletter", "bad")
    assert (read.dead_letters_of("dlq.orders"), read.dead_letters_of("bad")) == ("bad", None)
    assert (read.pipeline, read.pipeline_version) == ("p", "2")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"mode": "drop"}, "mode makes no sense without valueFormat"),
        ({"valueFormat": "json", "mode": "skip"}, "mode is skip; it must be one of fail"),
        ({"valueFormat": "json", "mode": "PERMISSIVE"}, "name _error string in the schema"),
        ({"valueFormat": "json", "deadLetterTopic": "x"}, "makes no sense without mode=deadletter"),
        (
            {"valueFormat": "json", "mode": "deadletter", "deadLetterTopic": "b"},
            "deadLetterTopic b is read itself",
        ),
        ({"valueFormat": "json", "sep": ";"}, "sep makes no sense without valueFormat=csv"),
        ({"valueFormat": "csv", "sep": "||"}, "sep is '||'; it must be one ASCII character"),
        ({"valueFormat": "csv", "sep": ""}, "sep is ''; it must be one ASCII character"),
        ({"valueFormat": "csv", "delimiter": '"'}, "delimiter and quote are both '\"'"),
        ({"valueFormat": "csv", "header": "true"}, "header=true makes no sense here"),
    ],
)
def test_options_of_typed_rows_that_do_not_fit_are_refused(
    changes: dict[str, str], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint.replace("|", r"\|")):
        parse_read_options(BASE | changes, streaming=False)
