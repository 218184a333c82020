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
        "compressed batches stay closed unless `millstream.verify.compressed` is set: opening each "
        "of them costs a producer more than the append itself, and the CRC has been checked",
        kafka={-1},
        millstream={0},
    ),
    "late EndTxn of protocol 1": Difference(
        "a flaw of protocol 1, which names no transaction: an EndTxn that a client has given up "
        "for lost may end its next transaction. Millstream refuses one that comes over a "
        "connection older than that over which the same client has since spoken for the "
        "transactional id",
        kafka={"ends a later transaction": True, "committed": 2, "abort": 48, "stable": 4},
        millstream={"ends a later transaction": False, "committed": 1, "abort": 0, "stable": 5},
    ),
    "InitProducerId while a transaction is open": Difference(
        "the answer comes when the abort is done, instead of an error that asks to try again",
        kafka=51,
        millstream=0,
    ),
}
