"""Transactions under crashes, delays, duplicates, zombies and time-outs; every run has a seed.

The shard is the real one; its runtime and partitions are only lists. Appends are durable with the
next flush. A crash keeps of each log what is durable and a part of what is not, each its
own. Producers of both protocols share transactional ids, so they fence each other; their requests
and answers are lost, repeated over a new connection, and delivered late.

Invariants, checked at every marker and at the end:

    all or nothing      what a transaction wrote is committed everywhere or nowhere
    as it was told      who was told "committed" has all its records committed, "aborted" none
    only on request     nothing is committed whose producer did not ask for it
    decided first       a marker follows a decision that is durable
    epochs never fall   for a producer id, in the coordinator's log and in every partition
    replay is state     the records give the same state as the shard has
    nothing hangs       when all is quiet no transaction is open or half ended anywhere

A failure prints the seed; `SEED=<n> pytest <this file>` runs that one alone.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from millstream.coordination.transactions.late_ends import ClientConnection
from millstream.coordination.transactions.marker import TransactionMarker
from millstream.coordination.transactions.records import TransactionState, TransactionValue
from millstream.coordination.transactions.shard import (
    AddRequest,
    EndRequest,
    InitRequest,
    TransactionShard,
)
from millstream.coordination.transactions.transaction import Producer, Transaction
from millstream.errors import ApiError, ErrorCode
from tests.coordination.transactions.harness import Driver

STEPS = 2_000
SEEDS = [int(os.environ["SEED"])] if "SEED" in os.environ else list(range(30))
IDS = ("tx-a", "tx-b", "tx-c", "tx-d")
CLIENTS = 5  # two of them share an id
PARTITIONS = 3
TIMEOUT_MS = 500
COORDINATOR_EPOCH = 0

Answer = Callable[[Any], None]


@dataclass(frozen=True)
class Token:
    """One transaction of one producer, as it sees it."""

    producer: int
    number: int


@dataclass
class PartitionLog:
    """Records and markers of one partition; what is known follows from them."""

    entries: list[tuple[Producer, Any]] = field(default_factory=list)
    durable: int = 0
    epochs: dict[int, int] = field(default_factory=dict)
    sequences: dict[Producer, int] = field(default_factory=dict)
    open: dict[int, list[Token]] = field(default_factory=dict)

    def append(self, producer: Producer, entry: Token | bool) -> None:
        assert producer.epoch >= self.epochs.get(producer.id, -1), "epochs never fall"
        self.entries.append((producer, entry))
        self._note(producer, entry)

    def _note(self, producer: Producer, entry: Token | bool) -> None:
        self.epochs[producer.id] = producer.epoch
        if isinstance(entry, Token):
            self.sequences[producer] = self.sequences.get(producer, 0) + 1
            self.open.setdefault(producer.id, []).append(entry)
        else:
            self.open.pop(producer.id, None)

    def is_open(self, producer: Producer) -> bool:
        return producer.id in self.open and self.epochs[producer.id] == producer.epoch

    def crash(self, kept: int) -> None:
        entries = self.entries[:kept]
        self.__init__(durable=kept)  # type: ignore[misc]
        for producer, entry in entries:
            self.append(producer, entry)


@dataclass
class Ending:
    """The markers of one prepared transaction on their way."""

    record: int  # the length of the coordinator's log with its decision
    written: dict[int, int] = field(default_factory=dict)  # partition -> length with its marker


class World:
    """The coordinator's runtime and the partitions."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.driver = Driver()
        self.durable = 0
        self.logs = [PartitionLog() for _ in range(PARTITIONS)]
        self.waiting: list[tuple[Callable[[], bool], Callable[[], None]]] = []
        self.endings: dict[str, Ending] = {}
        self.outcome: dict[Token, bool] = {}
        self.asked_to_commit: set[Token] = set()
        self.told: dict[Token, bool] = {}
        self.written: dict[Token, int] = {}  # records whose append was answered

    @property
    def shard(self) -> Any:
        return self.driver.shard

    def run(self, event: Callable[[], Any], answer: Answer) -> None:
        """Apply an event; the answer goes once its records are durable."""
        before = len(self.driver.log)
        response = self.driver.apply(event())
        for record in self.driver.log[before:]:
            transaction = self.shard.transactions.get(record.key.transactional_id)
            if transaction is not None and transaction.is_prepared:
                self.endings[record.key.transactional_id] = Ending(len(self.driver.log))
        length = len(self.driver.log)
        self.waiting.append((lambda: self.durable >= length, lambda: answer(response)))

    def produce(self, index: int, producer: Producer, sequence: int, token: Token) -> int:
        """Append unless it is there already; the length at which it is durable."""
        log = self.logs[index]
        if producer.epoch < log.epochs.get(producer.id, -1):
            raise ApiError(ErrorCode.INVALID_PRODUCER_EPOCH, "fenced")
        expected = log.sequences.get(producer, 0)
        if sequence > expected:
            raise ApiError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "a gap")
        if sequence == expected:
            if not log.is_open(producer):
                self.shard.verify(self._id_of(token), producer, ("t", index))
            log.append(producer, token)
        return len(log.entries)

    def _id_of(self, token: Token) -> str:
        return IDS[token.producer % len(IDS)]

    # --- what happens by itself

    def flush(self) -> None:
        self.durable = len(self.driver.log)
        for log in self.logs:
            log.durable = len(log.entries)
        self.go_on()

    def go_on(self) -> None:
        """Answer what is durable; write markers, complete."""
        ready = [it for it in self.waiting if it[0]()]
        self.waiting = [it for it in self.waiting if not it[0]()]
        for _, answer in ready:
            answer()
        for transactional_id, ending in list(self.endings.items()):
            if ending.record <= self.durable:
                self._end(transactional_id, ending)

    def _end(self, transactional_id: str, ending: Ending) -> None:
        transaction = self.shard.transactions[transactional_id]
        marker = transaction.marker(COORDINATOR_EPOCH)
        missing = sorted(it for _, it in transaction.partitions if it not in ending.written)
        if missing:
            index = self.rng.choice(missing)  # a crash may come between any two of them
            self._mark(index, marker)
            ending.written[index] = len(self.logs[index].entries)
        elif all(self.logs[it].durable >= length for it, length in ending.written.items()):
            del self.endings[transactional_id]
            self.driver.apply(self.shard.complete(transactional_id, self.driver.now_ms))

    def _mark(self, index: int, marker: TransactionMarker) -> None:
        decisions = (it.value for it in self.driver.log[: self.durable] if it.value is not None)
        assert any(
            (it.producer_id, it.producer_epoch) == (marker.producer_id, marker.producer_epoch)
            and it.state in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
            for it in decisions
        ), "decided first"
        log = self.logs[index]
        for token in log.open.get(marker.producer_id, ()):
            assert self.outcome.setdefault(token, marker.committed) is marker.committed, (
                "all or nothing"
            )
            if marker.committed:
                assert token in self.asked_to_commit, "only on request"
        log.append(Producer(marker.producer_id, marker.producer_epoch), marker.committed)

    def time_out(self) -> None:
        for transactional_id in self.shard.timed_out(self.driver.now_ms):
            self.run(
                lambda it=transactional_id: self.shard.abort_timed_out(it, self.driver.now_ms),
                lambda _: None,
            )

    def crash(self) -> None:
        kept = self.rng.randint(self.durable, len(self.driver.log))
        del self.driver.log[kept:]
        self.durable = kept
        for log in self.logs:
            log.crash(self.rng.randint(log.durable, len(log.entries)))
        self.waiting.clear()
        self.driver.reload()
        self.endings = {it.transactional_id: Ending(kept) for it in self.shard.prepared()}

    def check_replay(self) -> None:
        def state(shard: Any) -> dict[str, Any]:
            return {
                name: replace(it, last_producer_epoch=-1) for name, it in shard.list_all().items()
            }

        live, before = state(self.shard), self.shard
        self.driver.reload()
        assert state(self.shard) == live, "replay is state"
        self.driver.shard = before

    def check_epochs(self) -> None:
        highest: dict[int, int] = {}
        for record in self.driver.log:
            value = record.value
            assert value.producer_epoch >= highest.get(value.producer_id, -1), "epochs never fall"
            highest[value.producer_id] = value.producer_epoch


class Client:
    """A transactional producer: one request at a time, repeated until it is answered."""

    def __init__(self, world: World, number: int, connections: Callable[[], int]) -> None:
        self.world = world
        self.number = number
        self.version = (0, 2)[number % 3 == 0]
        self.transactional_id = IDS[number % len(IDS)]
        self.connections = connections
        self.transactions = 0
        self.start_over()

    def start_over(self) -> None:
        """As a new process: nothing is known but the transactional id."""
        self.producer: Producer | None = None
        self.sequences: dict[int, int] = {}
        self.begin()
        self.connection = self.connections()
        self.request: Callable[[ClientConnection, Answer], None] | None = None

    def begin(self) -> None:
        self.transactions += 1
        self.token = Token(self.number, self.transactions)
        self.added: set[int] = set()
        self.records = 0

    # --- deciding what to do

    def act(self, rng: random.Random) -> None:
        if self.request is not None:
            self.connection = self.connections()  # no answer came: again, over a new connection
        elif self.producer is None:
            self.request = self._initialize
        elif self.records == 0 or rng.random() < 0.5:
            self._plan_produce(rng.randrange(PARTITIONS))
        else:
            self._plan_end(committed=rng.random() < 0.7)

    def _plan_produce(self, index: int) -> None:
        producer, token = self.producer, self.token
        assert producer is not None
        if self.version == 0 and index not in self.added:
            self.request = lambda connection, answer: self._add(producer, index, connection, answer)
            return
        sequence = self.sequences.get(index, 0)
        self.request = lambda connection, answer: self._produce(
            producer, index, sequence, token, answer
        )

    def _plan_end(self, committed: bool) -> None:
        producer, token = self.producer, self.token
        assert producer is not None
        if committed:
            self.world.asked_to_commit.add(token)
        self.request = lambda connection, answer: self._end(producer, committed, connection, answer)

    # --- at the broker

    def _initialize(self, connection: ClientConnection, answer: Answer) -> None:
        world = self.world
        request = InitRequest(self.transactional_id, TIMEOUT_MS)
        world.run(
            lambda: world.shard.initialize(request, world.driver.now_ms),
            lambda response: answer(("initialized", response.producer)),
        )

    def _add(
        self, producer: Producer, index: int, connection: ClientConnection, answer: Answer
    ) -> None:
        world = self.world
        partitions = frozenset((("t", index),))
        request = AddRequest(self.transactional_id, producer, partitions, self.version, connection)
        world.run(
            lambda: world.shard.add_partitions(request, world.driver.now_ms),
            lambda _: answer(("added", index)),
        )

    def _produce(
        self, producer: Producer, index: int, sequence: int, token: Token, answer: Answer
    ) -> None:
        world = self.world

        def append(_: object = None) -> None:
            try:
                length = world.produce(index, producer, sequence, token)
            except ApiError as error:
                answer(error)
                return
            log = world.logs[index]
            world.waiting.append(
                (lambda: log.durable >= length, lambda: answer(("produced", index)))
            )

        if self.version == 0:
            append()
            return
        partitions = frozenset((("t", index),))
        request = AddRequest(self.transactional_id, producer, partitions, self.version)
        world.run(lambda: world.shard.add_partitions(request, world.driver.now_ms), append)

    def _end(
        self, producer: Producer, committed: bool, connection: ClientConnection, answer: Answer
    ) -> None:
        world = self.world
        request = EndRequest(self.transactional_id, producer, committed, self.version, connection)
        world.run(
            lambda: world.shard.end(request, world.driver.now_ms),
            lambda response: answer(("ended", (committed, response.producer))),
        )

    # --- the answer

    def receive(self, request: object, answer: Any) -> None:
        if request is not self.request:
            return  # to a request that was answered before
        if isinstance(answer, ApiError):
            if answer.code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                self.start_over()
            return
        self.request = None
        kind, what = answer
        if kind == "initialized":
            self.producer = what  # None while what was open is aborted
        elif kind == "added":
            self.added.add(what)
        elif kind == "produced":
            self.sequences[what] = self.sequences.get(what, 0) + 1
            self.records += 1
            self.world.written[self.token] = self.records
        else:
            self._ended(*what)

    def _ended(self, committed: bool, producer: Producer) -> None:
        self.world.told[self.token] = committed
        if producer != self.producer:
            self.sequences.clear()
        self.producer = producer
        self.begin()


class Simulation:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.world = World(self.rng)
        self.connection_id = 0
        self.clients = [Client(self.world, number, self._connect) for number in range(CLIENTS)]
        self.network: list[tuple[Client, Any, ClientConnection]] = []

    def _connect(self) -> int:
        self.connection_id += 1
        return self.connection_id

    def run(self, steps: int) -> None:
        events = (self.act, self.deliver, self.flush, self.pass_time, self.crash, self.restart)
        for _ in range(steps):
            self.rng.choices(events, (30, 25, 30, 0.3, 0.8, 0.6))[0]()
        self.settle()
        self.check()

    def act(self) -> None:
        client = self.rng.choice(self.clients)
        if client.request is not None and self.rng.random() < 0.5:
            return  # it is patient
        client.act(self.rng)
        connection = ClientConnection(f"c{client.number}", "host", client.connection)
        self.network.append((client, client.request, connection))

    def deliver(self) -> None:
        """Some request on its way, most often the newest. A connection keeps its order, and what a
        client repeats it repeats over another one."""
        if not self.network:
            return
        newest = len(self.network) - 1
        position = newest if self.rng.random() < 0.9 else self.rng.randint(0, newest)
        connection_id = self.network[position][2].connection_id
        first = next(it for it in self.network if it[2].connection_id == connection_id)
        self.network.remove(first)
        client, request, connection = first
        if self.rng.random() < 0.05:
            return

        def answer(what: Any) -> None:
            if self.rng.random() < 0.9:
                client.receive(request, what)

        try:
            request(connection, answer)
        except ApiError as error:
            answer(error)

    def flush(self) -> None:
        self.world.flush()

    def pass_time(self) -> None:
        self.world.driver.now_ms += self.rng.randrange(2 * TIMEOUT_MS)
        self.world.time_out()

    def crash(self) -> None:
        self.world.crash()
        self.network.clear()  # all connections are gone, with what was under way

    def restart(self) -> None:
        self.rng.choice(self.clients).start_over()

    def settle(self) -> None:
        """No more requests: time-outs end what is open."""
        self.network.clear()
        for _ in range(20 * PARTITIONS):
            self.world.driver.now_ms += TIMEOUT_MS + 1
            self.world.time_out()
            self.world.flush()

    def check(self) -> None:
        world = self.world
        world.check_replay()
        world.check_epochs()
        assert not world.shard.prepared(), "nothing hangs"
        assert not any(log.open for log in world.logs), "nothing hangs"
        for token, committed in world.told.items():
            if token in world.written:
                assert world.outcome[token] is committed, "as it was told"
        committed_records: dict[Token, int] = {}
        for log in world.logs:
            for _, entry in log.entries:
                if isinstance(entry, Token) and world.outcome[entry]:
                    committed_records[entry] = committed_records.get(entry, 0) + 1
        for token, committed in world.told.items():
            if committed:
                assert committed_records.get(token, 0) >= world.written[token], "as it was told"


@pytest.mark.parametrize("seed", SEEDS)
def test_transactions_hold_their_promises(seed: int) -> None:
    simulation = Simulation(seed)
    simulation.run(STEPS)


def some_seed_breaks() -> bool:
    for seed in range(60):
        try:
            Simulation(seed).run(STEPS)
        except AssertionError:
            return True
    return False


def test_simulation_notices_ends_that_come_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TransactionShard, "_refuse_late_end", lambda *_: None)
    assert some_seed_breaks()


def test_simulation_notices_completion_before_the_markers_are_durable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def end_at_once(world: World, transactional_id: str, _: Ending) -> None:
        transaction = world.shard.transactions[transactional_id]
        for _, index in transaction.partitions:
            world._mark(index, transaction.marker(COORDINATOR_EPOCH))
        del world.endings[transactional_id]
        world.driver.apply(world.shard.complete(transactional_id, world.driver.now_ms))

    monkeypatch.setattr(World, "_end", end_at_once)
    assert some_seed_breaks()


def test_simulation_notices_epochs_that_do_not_rise(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = Transaction._prepare_v2

    def keep_epoch(transaction: Transaction, *arguments: Any) -> TransactionValue:
        epoch = transaction.value.producer_epoch
        return replace(prepare(transaction, *arguments), producer_epoch=epoch)

    monkeypatch.setattr(Transaction, "_prepare_v2", keep_epoch)
    assert some_seed_breaks()


def test_simulation_sees_commits_aborts_and_retries() -> None:
    """What the simulation is worth: it gets everywhere."""
    told: list[bool] = []
    states: set[TransactionState] = set()
    for seed in range(5):
        simulation = Simulation(seed)
        simulation.run(STEPS)
        told += simulation.world.told.values()
        states |= {TransactionState(it.value.state) for it in simulation.world.driver.log}
    assert told.count(True) > 50
    assert told.count(False) > 20
    assert states >= set(TransactionState) - {
        TransactionState.DEAD,
        TransactionState.PREPARE_EPOCH_FENCE,
    }
