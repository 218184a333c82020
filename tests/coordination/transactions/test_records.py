"""Records of `__transaction_state`: their bytes, both versions, and what Kafka makes of them."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from millstream.coordination.record_codec import CorruptRecord
from millstream.coordination.transactions.records import (
    TRANSACTION_RECORDS,
    TopicPartitions,
    TransactionKey,
    TransactionState,
    TransactionValue,
)
from millstream.records.record import Record, encode_batch
from tests.peers.java_runtime import java_program

ONGOING = TransactionValue(
    producer_id=5,
    producer_epoch=3,
    timeout_ms=60_000,
    state=TransactionState.ONGOING,
    partitions=(TopicPartitions("t", (1, 2)),),
    last_update_ms=100,
    start_ms=50,
    previous_producer_id=4,
    next_producer_id=6,
    client_version=2,
)
EMPTY = TransactionValue(5, 0, 60_000, TransactionState.EMPTY, None, 100)


@pytest.mark.parametrize("value", [ONGOING, EMPTY])
def test_version_1_keeps_everything_that_kafka_writes(value: TransactionValue) -> None:
    key, encoded = TRANSACTION_RECORDS.encode(TransactionKey("tx"), value)
    assert TRANSACTION_RECORDS.decode(key, encoded) == (TransactionKey("tx"), value)


def test_version_0_has_the_bytes_of_kafka() -> None:
    key, encoded = TRANSACTION_RECORDS.encode(
        TransactionKey("tx"), replace(ONGOING, format_version=0)
    )
    assert key == b"\x00\x00" + b"\x00\x02tx"
    assert encoded == bytes.fromhex(
        "0000" "0000000000000005" "0003" "0000ea60" "01"
        "00000001" "000174" "00000002" "00000001" "00000002"
        "0000000000000064" "0000000000000032"
    )  # fmt: skip


def test_state_that_nobody_knows_is_corrupt() -> None:
    key, encoded = TRANSACTION_RECORDS.encode(
        TransactionKey("tx"), replace(ONGOING, format_version=0)
    )
    assert encoded is not None
    with pytest.raises(CorruptRecord, match="invalid TransactionState: 99"):
        TRANSACTION_RECORDS.decode(key, encoded[:16] + b"\x63" + encoded[17:])


def test_version_0_is_read_with_defaults_for_what_it_lacks() -> None:
    key, encoded = TRANSACTION_RECORDS.encode(
        TransactionKey("tx"), replace(ONGOING, format_version=0)
    )
    _, value = TRANSACTION_RECORDS.decode(key, encoded) or (None, None)
    assert value == replace(ONGOING, previous_producer_id=-1, next_producer_id=-1, client_version=0)


def test_epoch_before_is_not_written() -> None:
    key, encoded = TRANSACTION_RECORDS.encode(
        TransactionKey("tx"), replace(ONGOING, last_producer_epoch=2)
    )
    assert TRANSACTION_RECORDS.decode(key, encoded) == (TransactionKey("tx"), ONGOING)


def test_label_is_the_name_in_the_apis() -> None:
    assert TransactionState.PREPARE_EPOCH_FENCE.label == "PrepareEpochFence"
    assert TransactionState.ONGOING.label == "Ongoing"


@pytest.mark.java
def test_kafka_decodes_both_versions(tmp_path: Path) -> None:
    values = [ONGOING, replace(ONGOING, format_version=0), EMPTY, None]
    records = [
        Record(offset, 1000, *TRANSACTION_RECORDS.encode(TransactionKey("tx"), value))
        for offset, value in enumerate(values)
    ]
    segment = tmp_path / "00000000000000000000.log"
    segment.write_bytes(encode_batch(records))
    command = java_program("org.apache.kafka.tools.DumpLogSegments")
    arguments = ["--transaction-log-decoder", "--files", str(segment)]
    dump = subprocess.run([*command, *arguments], check=True, capture_output=True, text=True).stdout
    lines = [line for line in dump.splitlines() if " payload: " in line]
    keys = [json.loads(line.split(" key: ")[1].split(" payload: ")[0]) for line in lines]
    payloads = [line.split(" payload: ")[1] for line in lines]
    assert [key["data"] for key in keys] == [{"transactionalId": "tx"}] * 4
    assert payloads.pop() == "<DELETE>"
    decoded = [json.loads(payload) for payload in payloads]
    assert [it["version"] for it in decoded] == ["1", "0", "1"]
    ongoing = {
        "producerId": 5,
        "previousProducerId": 4,
        "nextProducerId": 6,
        "producerEpoch": 3,
        "transactionTimeoutMs": 60_000,
        "transactionStatus": 1,
        "transactionPartitions": [{"topic": "t", "partitionIds": [1, 2]}],
        "transactionLastUpdateTimestampMs": 100,
        "transactionStartTimestampMs": 50,
        "clientTransactionVersion": 2,
    }
    assert decoded[0]["data"] == ongoing
    tagged = {"previousProducerId", "nextProducerId", "clientTransactionVersion"}
    assert decoded[1]["data"] == {k: v for k, v in ongoing.items() if k not in tagged}
    assert decoded[2]["data"]["transactionPartitions"] is None
