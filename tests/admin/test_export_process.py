"""Exports in a child process: the file, what fails, and a child that ends with its parent's
interest."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from millstream import Broker
from millstream.admin.browsing import Asked, Start
from millstream.admin.export_process import ExportProcess
from millstream.admin.exporting import ExportFailed
from millstream.errors import ApiError, ErrorCode
from tests.peers.patience import PATIENCE_SECONDS


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with Broker.start() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for number in range(100):
            producer.produce("orders", str(number).encode())
        assert producer.flush(PATIENCE_SECONDS) == 0
        yield broker.bootstrap_servers


def read(export: ExportProcess) -> bytes:
    found = b""
    with export:
        while (chunk := export.read()) is not None:
            found += chunk
    return found


def test_file_is_written_by_a_child(servers: str) -> None:
    asked = Asked(Start.OLDEST, count=30)
    lines = read(ExportProcess(servers, {}, "orders", asked, "json")).splitlines()
    assert [json.loads(it)["value"] for it in lines] == [str(it) for it in range(30)]


def test_what_fails_says_why(servers: str) -> None:
    with pytest.raises(ApiError, match="there is no topic gone") as refused:
        read(ExportProcess(servers, {}, "gone", Asked(), "csv"))
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    export = ExportProcess(servers, {"security.protocol": "none"}, "orders", Asked(), "csv")
    with pytest.raises(ExportFailed, match=r"security\.protocol"):
        read(export)


def test_child_ends_with_the_export(servers: str) -> None:
    export = ExportProcess(servers, {}, "orders", Asked(), "json")
    export.close()
    assert export._child.returncode is not None
    other = ExportProcess(servers, {}, "orders", Asked(), "json")
    with other:
        assert other._child.stdin is not None
        other._child.stdin.close()  # as if this process were gone
        other._child.wait(PATIENCE_SECONDS)
