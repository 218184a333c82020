"""A log that lives in a few lists, with clients at random: perfect, unless a fault is asked for.

`simulate` returns the history of a run; with a fault, `fault_struck` says whether the fault came to
bear, that is whether a reader could have noticed it.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from millstream.testing.histories import (
    Anomaly,
    History,
    Kind,
    Operation,
    Outcome,
    Read,
    Send,
    incarnation,
)

INPUTS = ("in-0", "in-1", "in-2")
OUTPUTS = ("out-0", "out-1")
PARTITIONS = INPUTS + OUTPUTS


class Fault(NamedTuple):
    name: str
    anomaly: Anomaly


FAULTS = [
    Fault("abort-marker-written-as-commit", Anomaly.ABORTED_READ),
    Fault("open-transactions-served", Anomaly.PRECOMMITTED_READ),
    Fault("commit-marker-wrong-in-one-partition", Anomaly.TORN_TRANSACTION),
    Fault("record-dropped", Anomaly.LOST),
    Fault("tail-truncated", Anomaly.UNSEEN),
    Fault("batch-doubled", Anomaly.DUPLICATED),
    Fault("offset-reused", Anomaly.INCONSISTENT_OFFSET),
    Fault("value-damaged", Anomaly.UNKNOWN_VALUE),
    Fault("deleted-topic-kept", Anomaly.DELETED_TOPIC),
    Fault("poll-skips", Anomaly.SKIPPED_POLL),
    Fault("poll-goes-back", Anomaly.NON_MONOTONIC_POLL),
    Fault("sends-reordered", Anomaly.NON_MONOTONIC_SEND),
    Fault("offset-commit-lost", Anomaly.PROCESSED_TWICE),
    Fault("aborted-offsets-committed", Anomaly.NOT_PROCESSED),
]


class FaultyHistory(History):
    fault_struck = False


@dataclass
class Transaction:
    """Open while `visible` is None."""

    sends: list[Send] = field(default_factory=list)
    visible: dict[str, bool] | None = None
    was_served_open: bool = False


class Entry(NamedTuple):
    value: int | None  # None: a marker, or a hole
    transaction: Transaction | None = None


def simulate(seed: int, length: int, fault: Fault | None = None) -> FaultyHistory:
    return Simulation(random.Random(seed), fault).run(length)


class Simulation:
    def __init__(self, dice: random.Random, fault: Fault | None) -> None:
        self.dice = dice
        self.fault = fault.name if fault else ""
        self.history = FaultyHistory()
        self.log: dict[str, list[Entry]] = {partition: [] for partition in PARTITIONS}
        self.values = itertools.count(1)
        self.clock = itertools.count(1)
        self.open: dict[str, Transaction] = {}
        self.positions: dict[tuple[str, str], int] = defaultdict(int)  # of readers
        self.committed: dict[tuple[str, str], int] = defaultdict(int)  # of groups
        self.processed: set[tuple[str, int]] = set()
        self.passed_over: set[tuple[str, int]] = set()
        self.dropped: set[tuple[str, int]] = set()
        self.recreated: list[int] = []  # the records of a topic that is deleted again and again
        self.incarnations = itertools.count(1)

    def run(self, length: int) -> FaultyHistory:
        actions = [self.write, self.write, self.transact, self.transact, self.follow, self.follow]
        actions += [self.process, self.process, self.rebalance, self.recreate]
        for _ in range(length):
            self.dice.choice(actions)()
        for name in list(self.open):
            self.end(name, Outcome.FAIL)
        for _ in range(20):
            self.process()
        self.truncate()
        self.read_everything()
        self.look_back()
        return self.history

    def strikes(self, fault: str, chance: float = 0.3) -> bool:
        return self.fault == fault and self.dice.random() < chance

    # Producers

    def write(self) -> None:
        partition = self.dice.choice(INPUTS)
        sends = [Send(partition, next(self.values)) for _ in range(self.dice.randint(1, 3))]
        outcome = self.dice.choices([Outcome.OK, Outcome.INFO, Outcome.FAIL], [8, 1, 1])[0]
        applied = outcome is Outcome.OK or (outcome is Outcome.INFO and self.dice.random() < 0.5)
        if applied:
            stored = self.append(sends)
            sends = stored if outcome is Outcome.OK else sends
        self.record(f"writer-{self.dice.randint(0, 1)}", Kind.SEND, outcome, sends=sends)

    def recreate(self) -> None:
        """Delete and create a topic; write and read all of it."""
        partition = incarnation("recreated-0", next(self.incarnations))
        if not (self.recreated and self.strikes("deleted-topic-kept")):
            self.recreated = []
        self.history.fault_struck |= bool(self.recreated)
        sends = []
        for _ in range(self.dice.randint(0, 3)):
            sends.append(Send(partition, next(self.values), len(self.recreated)))
            self.recreated.append(int(sends[-1].value))
        self.record("recreator", Kind.SEND, sends=sends)
        reads = [Read(partition, *found) for found in enumerate(self.recreated)]
        self.record("recreator", Kind.POLL, reads=reads, moved=(partition,), final=True)

    def append(self, sends: list[Send], transaction: Transaction | None = None) -> list[Send]:
        """Put records into the log; returns them with their offsets."""
        order = list(sends)
        if len(order) > 1 and transaction is None and self.strikes("sends-reordered"):
            order.reverse()
            self.history.fault_struck = True
        offsets = {}
        for send in order:
            log = self.log[send.partition]
            if transaction is None and log and self.strikes("offset-reused", 0.1):
                offsets[send.value] = len(log) - 1
                self.history.fault_struck |= log[-1].value is not None
                log[-1] = Entry(int(send.value))
                continue
            offsets[send.value] = len(log)
            is_dropped = transaction is None and self.strikes("record-dropped")
            log.append(Entry(None if is_dropped else int(send.value), transaction))
            if is_dropped:
                self.dropped.add((send.partition, len(log) - 1))
        if transaction is None and self.strikes("batch-doubled"):
            self.history.fault_struck = True
            for send in order:
                self.log[send.partition].append(Entry(int(send.value)))
        return [send._replace(offset=offsets[send.value]) for send in sends]

    def transact(self) -> None:
        name = f"transactor-{self.dice.randint(0, 2)}"
        transaction = self.open.setdefault(name, Transaction())
        if self.dice.random() < 0.6:
            sends = [Send(self.dice.choice(INPUTS), next(self.values)) for _ in range(2)]
            transaction.sends += self.append(sends, transaction)
        else:
            outcomes = [Outcome.OK, Outcome.FAIL, Outcome.INFO]
            self.end(name, self.dice.choices(outcomes, [6, 3, 1])[0])

    def end(self, name: str, outcome: Outcome) -> None:
        transaction = self.open.pop(name)
        asked_ns = next(self.clock)
        commit = outcome is Outcome.OK or (outcome is Outcome.INFO and self.dice.random() < 0.5)
        self.mark(transaction, commit)
        sends = transaction.sends
        if outcome is Outcome.INFO:
            sends = [send._replace(offset=None) for send in sends]
        commit_ns = None if outcome is Outcome.FAIL else asked_ns
        self.record(name, Kind.TXN, outcome, sends=sends, commit_ns=commit_ns)

    def mark(self, transaction: Transaction, commit: bool) -> None:
        """Write the markers."""
        partitions = list(dict.fromkeys(send.partition for send in transaction.sends))
        if not commit and partitions and self.strikes("abort-marker-written-as-commit"):
            self.history.fault_struck = commit = True
        transaction.visible = dict.fromkeys(partitions, commit)
        fault = "commit-marker-wrong-in-one-partition"
        if commit and len(partitions) > 1 and self.strikes(fault):
            self.history.fault_struck = True
            transaction.visible[partitions[0]] = False
        self.history.fault_struck |= commit and transaction.was_served_open
        for partition in partitions:
            self.log[partition].append(Entry(None))

    # Consumers

    def visible(self, partition: str, position: int) -> Iterator[tuple[int, int]]:
        """(offset, value) from a position to the last stable offset."""
        for offset, (value, transaction) in enumerate(self.log[partition][position:], position):
            if transaction is not None and transaction.visible is None:
                if self.fault != "open-transactions-served":
                    return
            elif transaction is not None and not transaction.visible[partition]:
                continue
            if value is not None:
                yield offset, value

    def fetch(self, partition: str, position: int) -> list[Read]:
        found = itertools.islice(self.visible(partition, position), self.dice.randint(1, 5))
        reads = [Read(partition, offset, value) for offset, value in found]
        for read in reads:
            transaction = self.log[partition][read.offset].transaction
            if transaction is not None and transaction.visible is None:
                transaction.was_served_open = True
        return reads

    def follow(self) -> None:
        partition = self.dice.choice(INPUTS)
        process = f"follower-{self.dice.randint(0, 1)}"
        reads = self.fetch(partition, self.positions[process, partition])
        is_plain = len(reads) > 2 and self.log[partition][reads[1].offset].transaction is None
        if is_plain and self.strikes("poll-skips"):
            self.history.fault_struck = True
            del reads[1]
        if reads and self.strikes("value-damaged"):
            self.history.fault_struck = True
            reads[0] = reads[0]._replace(value=-1)
        if reads:
            self.positions[process, partition] = reads[-1].offset + 1
            if self.strikes("poll-goes-back"):
                self.positions[process, partition] = reads[-1].offset
        self.history.fault_struck |= self.has_gone_back(process, reads)
        self.record(process, Kind.POLL, reads=reads)

    def has_gone_back(self, process: str, reads: list[Read]) -> bool:
        if self.fault != "poll-goes-back" or not reads:
            return False
        before = [
            read.offset
            for operation in self.history
            if operation.process == process
            for read in operation.reads
            if read.partition == reads[0].partition
        ]
        return bool(before) and reads[0].offset <= before[-1]

    def rebalance(self) -> None:
        """A group reader is moved to where another one left off."""
        partition = self.dice.choice(INPUTS)
        process = f"follower-{self.dice.randint(0, 1)}"
        if self.fault != "poll-goes-back":
            self.positions[process, partition] = self.dice.randint(0, len(self.log[partition]))
            self.record(process, Kind.POLL, moved=(partition,))

    def process(self) -> None:
        """Consume, transform, produce: a worker of a group, from the committed offset."""
        partition = self.dice.choice(INPUTS)
        place = ("workers", partition)
        reads = self.fetch(partition, self.committed[place])
        if not reads:
            return
        name = f"worker-{self.dice.randint(0, 1)}"
        self.open[name] = transaction = Transaction()
        sends = [Send(self.dice.choice(OUTPUTS), next(self.values)) for _ in reads]
        transaction.sends += self.append(sends, transaction)
        outcome = self.dice.choices([Outcome.OK, Outcome.FAIL, Outcome.INFO], [6, 2, 1])[0]
        commit = outcome is Outcome.OK or (outcome is Outcome.INFO and self.dice.random() < 0.5)
        asked_ns = next(self.clock)
        del self.open[name]
        self.mark(transaction, commit)
        places = {(partition, read.offset) for read in reads}
        if commit:
            self.history.fault_struck |= bool(
                self.fault == "offset-commit-lost" and places & self.processed
            )
            self.processed |= places
        elif self.strikes("aborted-offsets-committed"):
            self.passed_over |= places
            commit = True
        if commit and not self.strikes("offset-commit-lost"):
            self.committed[place] = reads[-1].offset + 1
        self.record(
            name,
            Kind.TXN,
            outcome,
            sends=transaction.sends if outcome is not Outcome.INFO else sends,
            reads=reads,
            moved=(partition,),
            group="workers",
            commit_ns=None if outcome is Outcome.FAIL else asked_ns,
        )

    # The end

    def truncate(self) -> None:
        if self.fault != "tail-truncated":
            return
        acknowledged = {
            send.value
            for operation in self.history
            if operation.kind is Kind.SEND and operation.outcome is Outcome.OK
            for send in operation.sends
        }
        for partition in PARTITIONS:
            for offset, value in list(self.visible(partition, 0))[-1:]:
                self.history.fault_struck |= value in acknowledged
                del self.log[partition][offset:]

    def read_everything(self) -> None:
        for partition in PARTITIONS:
            reads = [Read(partition, *found) for found in self.visible(partition, 0)]
            self.record("final", Kind.POLL, reads=reads, moved=(partition,), final=True)

    def look_back(self) -> None:
        """Faults that show only by what came after them."""
        for partition, offset in self.dropped:
            highest = max((o for o, _ in self.visible(partition, 0)), default=-1)
            self.history.fault_struck |= highest > offset
        for partition, offset in self.passed_over - self.processed:
            others = [o for p, o in self.processed if p == partition]
            if others and min(others) < offset < max(others):
                self.history.fault_struck = True

    def record(
        self,
        process: str,
        kind: Kind,
        outcome: Outcome = Outcome.OK,
        *,
        sends: list[Send] | None = None,
        reads: list[Read] | None = None,
        moved: tuple[str, ...] = (),
        group: str | None = None,
        commit_ns: int | None = None,
        final: bool = False,
    ) -> None:
        now = next(self.clock)
        self.history.record(
            Operation(
                process=process,
                kind=kind,
                outcome=outcome,
                began_ns=now,
                ended_ns=now,
                commit_ns=commit_ns,
                sends=tuple(sends or ()),
                reads=tuple(reads or ()),
                moved=moved,
                group=group,
                final=final,
            )
        )
