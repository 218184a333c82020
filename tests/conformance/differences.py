"""Where Millstream knowingly differs from Apache Kafka 4.3.1: the only place a test may ask.

A test takes the expected value from here by name (`broker.expects("...")`), so that the list is
complete and every entry has its reason. It is printed, counted, at the end of every test run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Difference:
    reason: str
    kafka: Any
    millstream: Any


DIFFERENCES: dict[str, Difference] = {
    "garbage said to be compressed": Difference(
        "compressed batches are not decompressed unless `millstream.verify.compressed` is set: it "
        "costs more than the append itself, and the CRC has been checked",
        kafka={-1},
        millstream={0},
    ),
    "late EndTxn of protocol 1": Difference(
        "EndTxn of protocol 1 does not identify the transaction: a delayed EndTxn may end the "
        "client's next transaction. Millstream refuses an EndTxn on a connection older than the "
        "one on which the same client has since used the transactional id",
        kafka={"ends a later transaction": True, "committed": 2, "abort": 48, "stable": 4},
        millstream={"ends a later transaction": False, "committed": 1, "abort": 0, "stable": 5},
    ),
    "InitProducerId while a transaction is open": Difference(
        "answered when the abort is complete, instead of with a retriable error",
        kafka=51,
        millstream=0,
    ),
    "delivery counts after a share group was deleted and recreated": Difference(
        "a recreated group begins without state. Apache Kafka keeps the deleted group's delivery "
        "counts in memory while one of its members is connected",
        kafka=2,
        millstream=1,
    ),
    "id of a topic in AlterShareGroupOffsets": Difference(
        "Apache Kafka answers a topic that the user may not read with its id, and so tells that it "
        "exists; Millstream answers as if it did not",
        kafka="id:",
        millstream="",
    ),
    "unknown user of SCRAM": Difference(
        "Apache Kafka refuses an unknown user at the first message, and so tells who is known; "
        "Millstream goes on with a salt that it made up, and refuses at the proof, as with a wrong "
        "password",
        kafka=1,
        millstream=2,
    ),
}
