"""Clients that append versions of a few keys, each trying to be the first: conditional appends.

A claim is sent once and never again, so that its outcome is certain: appended, refused, or without
an answer. Claimants tell each other the last version that they know of, and are often late with it.

A transactional claimant claims in a transaction, which it may abort. Until the transaction ends,
the broker refuses the claims of others.
"""

from __future__ import annotations

import random
import time
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.testing.histories.clients import (
    ANSWER_SECONDS_MAX,
    IMPATIENT,
    Batch,
    Client,
    Scene,
    TransactionalClient,
)
from millstream.testing.histories.history import Kind, Outcome, Send

KEYS = 3
CLAIM_TIMEOUT_MS = 5_000
WRONG_VERSIONS = 0.1  # of all claims
SETTING = "millstream.conditional.append"
VERSION_HEADER = "millstream-version"


def claimed_topic(prefix: str) -> str:
    return f"{prefix}-claims"


def create_claimed_topic(scene: Scene) -> bool:
    """False if the cluster has no conditional append."""
    admin = AdminClient(IMPATIENT | scene.config)
    name = claimed_topic(scene.prefix)
    new = NewTopic(name, scene.partitions, config={SETTING: "version"})
    try:
        admin.create_topics([new])[name].result(ANSWER_SECONDS_MAX)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.INVALID_CONFIG:
            return False
        raise
    return True


class Choice(NamedTuple):
    """What to claim next."""

    number: int
    version: int

    @property
    def key(self) -> str:
        return f"key-{self.number}"


def choose(dice: random.Random, known: dict[str, int]) -> Choice:
    """Usually the version after the last one that is known."""
    number = dice.randrange(KEYS)
    version = known.get(f"key-{number}", 0) + 1
    if dice.random() < WRONG_VERSIONS:
        version = max(1, version + dice.choice((-1, 1, 2)))
    return Choice(number, version)


def learn(dice: random.Random, known: dict[str, int], choice: Choice, outcome: Outcome) -> None:
    """A refusal does not contain the key's version: it may be higher, or lower, if the version was
    held by a transaction that is aborted."""
    if outcome is Outcome.OK:
        known[choice.key] = choice.version
    elif outcome is Outcome.FAIL:
        known[choice.key] = max(0, choice.version + dice.choice((-2, -1, 0)))


class Claimant(Client):
    """`known` is shared by all claimants of a run: the last versions that they know of."""

    def __init__(self, scene: Scene, number: int, known: dict[str, int]) -> None:
        super().__init__(scene, f"claimant-{number}")
        self.known = known

    def live(self) -> None:
        producer = self.scene.producer(
            enable_idempotence=False,
            message_send_max_retries=0,
            message_timeout_ms=CLAIM_TIMEOUT_MS,
            linger_ms=0,
        )
        while not self.stopping.is_set():
            self.claim(producer)
            self.pause()
            if self.dice.random() < 0.01:
                return

    def claim(self, producer: Producer) -> Outcome:
        choice = choose(self.dice, self.known)
        value = next(self.scene.values)
        answers: list[tuple[KafkaError | None, int | None]] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            answers.append((error, message.offset()))

        topic, partition = claimed_topic(self.scene.prefix), choice.number % self.scene.partitions
        began_ns = time.monotonic_ns()
        producer.produce(
            topic,
            b"%d" % value,
            choice.key,
            partition=partition,
            headers={VERSION_HEADER: str(choice.version)},
            on_delivery=delivered,
        )
        producer.flush(CLAIM_TIMEOUT_MS / 1000 + 5)
        error, offset = answers[0] if answers else (None, None)
        if error is None and offset is not None:
            outcome = Outcome.OK
        elif error is not None and error.code() == KafkaError.POLICY_VIOLATION:
            outcome = Outcome.FAIL
        else:
            outcome = Outcome.INFO
        learn(self.dice, self.known, choice, outcome)
        self.record(
            Kind.CLAIM,
            began_ns,
            outcome=outcome,
            sends=[Send(f"{topic}-{partition}", value, offset if error is None else None)],
            key=choice.key,
            version=choice.version,
            error="" if error is None else str(error),
        )
        return outcome


class TransactionalClaimant(TransactionalClient):
    """Its claims are recorded as transactions with a key and a version."""

    def __init__(self, scene: Scene, number: int, known: dict[str, int]) -> None:
        super().__init__(scene, f"transactional-claimant-{number}")
        self.known = known

    def live(self) -> None:
        self.init_transactions()
        while not self.stopping.is_set():
            if self.claim() is not Outcome.OK:
                return  # after a refusal, librdkafka's next transaction fails too
            self.pause()

    def claim(self) -> Outcome:
        choice = choose(self.dice, self.known)
        topic = claimed_topic(self.scene.prefix)
        partition = choice.number % self.scene.partitions

        def fill(batch: Batch) -> None:
            headers = {VERSION_HEADER: str(choice.version)}
            batch.send(self.producer, topic, partition, key=choice.key, headers=headers)
            self.producer.flush(ANSWER_SECONDS_MAX)
            if self.dice.random() < 0.2:
                self.pause()

        outcome = self.transact(fill, key=choice.key, version=choice.version)
        learn(self.dice, self.known, choice, outcome)
        return outcome
