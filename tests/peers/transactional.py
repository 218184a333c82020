"""A transactional producer that does as it is told and no more, over one connection.

Real clients add partitions, retry and give up by themselves; a test of the protocol wants to send
each request when, and in the version, that it says. Answers that only ask for patience
(`IN_PROGRESS`) are awaited, as every client does, unless the test wants to see them.

    with TransactionalProducer(bootstrap, "my-id", protocol=2) as producer:
        producer.init()
        producer.produce(topic, [b"a", b"b"])
        producer.end(committed=True)
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from millstream.client.cluster import Cluster
from tests.peers.patience import PATIENCE_SECONDS, wait_until
from tests.peers.wire import Wire, batch, produce_fields

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its own schemas the old way
    from kafka.protocol.admin import DescribeTransactionsResponse

NO_ERROR = 0
COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR = 14, 15, 16
CONCURRENT_TRANSACTIONS = 51
IN_PROGRESS = {
    COORDINATOR_LOAD_IN_PROGRESS,
    COORDINATOR_NOT_AVAILABLE,
    NOT_COORDINATOR,
    CONCURRENT_TRANSACTIONS,
}
GROUP, TRANSACTION = 0, 1  # what a coordinator is asked for

# The newest version of each request that a client of that protocol sends.
VERSIONS = {
    1: {"produce": 11, "add_partitions": 3, "add_offsets": 3, "offsets": 4, "end": 4},
    2: {"produce": 12, "add_offsets": 4, "offsets": 5, "end": 5},
}


class TransactionalProducer:
    """Knows its producer id, epoch and sequence numbers; protocol 1, or 2 (KIP-890)."""

    def __init__(
        self,
        bootstrap: str,
        transactional_id: str,
        *,
        protocol: int = 2,
        client_id: str = "wire",
        producer_id: int = -1,
        producer_epoch: int = -1,
    ) -> None:
        self.bootstrap = bootstrap
        self.client_id = client_id
        self.wire = Wire(bootstrap, client_id=client_id)
        self.transactional_id = transactional_id
        self.protocol = protocol
        self.versions = VERSIONS[protocol]
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self._sequences: dict[tuple[str, int], int] = {}
        self._found: dict[tuple[str, int], str] = {}
        self._wires = {bootstrap: self.wire}  # by address

    def __enter__(self) -> TransactionalProducer:
        return self

    def __exit__(self, *_: object) -> None:
        for wire in self._wires.values():
            wire.socket.close()

    @property
    def identity(self) -> tuple[int, int]:
        return self.producer_id, self.producer_epoch

    @property
    def _who(self) -> dict[str, Any]:
        identity = {"producer_id": self.producer_id, "producer_epoch": self.producer_epoch}
        return {"transactional_id": self.transactional_id, **identity}

    def init(self, timeout_ms: int = 60_000, *, version: int = 4, resume: bool = False) -> int:
        """InitProducerId; with `resume` it says who it was (KIP-360). The error code."""
        self.find_coordinator(self.transactional_id, TRANSACTION)
        fields: dict[str, Any] = {
            "transactional_id": self.transactional_id,
            "transaction_timeout": timeout_ms,
        }
        if resume:
            fields |= {"producer_id": self.producer_id, "producer_epoch": self.producer_epoch}
        answer = patiently(
            lambda: self.wire.call("init_producer_id", version, **fields),
            lambda answer: int(answer.error_code),
        )
        if answer.error_code == NO_ERROR:
            self._become(answer.producer_id, answer.producer_epoch)
        return int(answer.error_code)

    def find_coordinator(self, key: str, key_type: int) -> str:
        if (key, key_type) not in self._found:
            self._found[key, key_type] = find_coordinator(self.wire, key, key_type)
        return self._found[key, key_type]

    def add_partitions(self, topic: str, *partitions: int, patient: bool = True) -> int:
        """AddPartitionsToTxn, as clients send it; the error code of the first partition."""
        fields = {f"v3_and_below_{name}": value for name, value in self._who.items()}
        topics = ({"name": topic, "partitions": partitions or (0,)},)

        def ask() -> int:
            answer = self.wire.call(
                "add_partitions_to_txn",
                self.versions.get("add_partitions", 3),
                v3_and_below_topics=topics,
                **fields,
            )
            results = answer.results_by_topic_v3_and_below[0].results_by_partition
            return int(results[0].partition_error_code)

        return patiently(ask) if patient else ask()

    def add_offsets(self, group: str, *, patient: bool = True) -> int:
        def ask() -> int:
            version = self.versions["add_offsets"]
            answer = self.wire.call("add_offsets_to_txn", version, group_id=group, **self._who)
            return int(answer.error_code)

        return patiently(ask) if patient else ask()

    def produce(
        self,
        topic: str,
        values: Sequence[bytes],
        *,
        partition: int = 0,
        version: int | None = None,
        sequence: int | None = None,
        transactional: bool = True,
        timestamp_ms: int | None = None,
        patient: bool = True,
    ) -> Any:
        """One batch of this transaction; the partition's answer. Sequences count by themselves."""
        version = self.versions["produce"] if version is None else version
        counted = self._sequences.get((topic, partition), 0)
        records = batch(
            values,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=counted if sequence is None else sequence,
            transactional=transactional,
            timestamp_ms=timestamp_ms,
        )
        fields = produce_fields(topic, records, partition=partition)

        def ask() -> Any:
            answer = self.wire.call(
                "produce", version, transactional_id=self.transactional_id, **fields
            )
            return answer.responses[0].partition_responses[0]

        answer = patiently(ask, lambda answer: int(answer.error_code)) if patient else ask()
        if answer.error_code == NO_ERROR:
            self._sequences[topic, partition] = counted + len(values)
        return answer

    def commit_offset(
        self,
        group: str,
        topic: str,
        offset: int,
        *,
        partition: int = 0,
        version: int | None = None,
        patient: bool = True,
        **member: Any,
    ) -> int:
        """TxnOffsetCommit of one partition, to the group's coordinator; the error code."""
        version = self.versions["offsets"] if version is None else version
        address = self.find_coordinator(group, GROUP)
        if address not in self._wires:
            self._wires[address] = Wire(address, client_id=self.client_id)
        position = {"partition_index": partition, "committed_offset": offset}
        topics = ({"name": topic, "partitions": ({**position, "committed_metadata": ""},)},)

        def ask() -> int:
            answer = self._wires[address].call(
                "txn_offset_commit",
                version,
                group_id=group,
                topics=topics,
                **self._who,
                **member,
            )
            return int(answer.topics[0].partitions[0].error_code)

        return patiently(ask) if patient else ask()

    def end(self, committed: bool, *, version: int | None = None, patient: bool = True) -> Any:
        """EndTxn; the answer. One of protocol 2 says who this producer is from now on."""
        version = self.versions["end"] if version is None else version

        def ask() -> Any:
            return self.wire.call("end_txn", version, committed=committed, **self._who)

        answer = patiently(ask, lambda answer: int(answer.error_code)) if patient else ask()
        if version >= 5 and answer.error_code == NO_ERROR:
            self._become(answer.producer_id, answer.producer_epoch)
        return answer

    def run(
        self, topic: str, values: Sequence[bytes], *, committed: bool, partition: int = 0
    ) -> int:
        """A whole transaction on one partition, until its marker is written; its first offset."""
        self.begin(topic, partition)
        answer = self.produce(topic, values, partition=partition)
        assert answer.error_code == NO_ERROR, answer
        assert self.end(committed).error_code == NO_ERROR
        wait_for_markers(self.bootstrap)
        return int(answer.base_offset)

    def begin(self, topic: str, *partitions: int) -> None:
        """What must be said before a first record: in protocol 1 its partition, in 2 nothing."""
        if self.protocol == 1:
            assert self.add_partitions(topic, *partitions) == NO_ERROR

    def _become(self, producer_id: int, producer_epoch: int) -> None:
        if (producer_id, producer_epoch) != self.identity:
            self._sequences.clear()
        self.producer_id, self.producer_epoch = producer_id, producer_epoch


def find_coordinator(wire: Wire, key: str, key_type: int) -> str:
    """Its address. As every client does first: the broker makes the internal topic then."""

    def ask() -> Any:
        fields = {"key_type": key_type, "coordinator_keys": (key,)}
        return wire.call("find_coordinator", 4, **fields).coordinators[0]

    found = patiently(ask, lambda answer: int(answer.error_code))
    assert found.error_code == NO_ERROR
    return f"{found.host}:{found.port}"


def patiently(ask: Callable[[], Any], code: Callable[[Any], int] = int) -> Any:
    """Ask again while the answer only asks for patience."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while code(answer := ask()) in IN_PROGRESS:
        assert time.monotonic() < deadline, f"still in progress: {answer}"
        time.sleep(0.02)
    return answer


def describe_transactions(bootstrap: str, *transactional_ids: str) -> Any:
    """The state of each. Read by kafka-python: kio refuses the -1 that says `not begun`."""
    with Wire(bootstrap) as wire:
        wire.start("describe_transactions", 0, transactional_ids=transactional_ids)
        answer = wire.receive_frame()
    return DescribeTransactionsResponse.decode(answer, version=0, header=True).transaction_states


def wait_for_markers(bootstrap: str) -> None:
    """EndTxn is answered when the decision is durable; consumers see it when the markers are."""
    fields = {
        "state_filters": ["PrepareCommit", "PrepareAbort"],
        "producer_id_filters": [],
        "transactional_id_pattern": None,
    }

    def is_ending() -> bool:
        answers = [cluster.connection(it).call("list_transactions", fields) for it in brokers]
        return any(it.transaction_states for it in answers)

    with Cluster(bootstrap, client_id="test") as cluster:
        brokers = cluster.broker_ids(seconds_old_max=0.0)
        wait_until(lambda: not is_ending(), "a transaction does not end")
