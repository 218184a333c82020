"""What a writer may be asked for."""

from __future__ import annotations

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.writing.options import parse_write_options
from millstream.records.compression import Compression

LEAST = {"kafka.bootstrap.servers": "localhost:9092"}


def test_parse_takes_names_in_any_case_as_spark_hands_them_over() -> None:
    options = parse_write_options(
        {
            **LEAST,
            "topic": "orders",
            "valueformat": "JSON",
            "keycolumns": "user, at",
            "kafka.compression.type": "zstd",
            "kafka.transaction.timeout.ms": "2000",
            "checkpointlocation": "/tmp/checkpoint",
            "queryname": "copy",
        },
        streaming=True,
    )
    assert options.topic == "orders"
    assert (options.value_format, options.key_columns) == ("json", ("user", "at"))
    assert options.compression is Compression.ZSTD
    assert options.transaction_timeout_ms == 2000
    assert (options.checkpoint_location, options.query_name) == ("/tmp/checkpoint", "copy")


@pytest.mark.parametrize(
    ("streaming", "delivery"), [(True, "exactly-once"), (False, "at-least-once")]
)
def test_parse_delivers_streams_exactly_once_and_jobs_at_least_once(
    streaming: bool, delivery: str
) -> None:
    assert parse_write_options(LEAST, streaming=streaming).delivery == delivery


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, "kafka.bootstrap.servers is missing"),
        ({**LEAST, "keyColum": "a"}, "did you mean keyColumns"),
        ({**LEAST, "keyColumns": "a"}, "keyColumns is for valueFormat json"),
        ({**LEAST, "delivery": "twice"}, "exactly-once, at-least-once"),
        ({**LEAST, "valueFormat": "xml"}, "raw, json"),
        ({**LEAST, "kafka.compression.type": "rar"}, "none, gzip, snappy, lz4, zstd"),
        ({**LEAST, "kafka.batch.size": "0"}, "at least 1"),
        ({**LEAST, "kafka.interceptor.classes": "x"}, "interceptors are Java classes"),
    ],
)
def test_parse_refuses_what_it_does_not_know(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_write_options(options, streaming=True)
