"""Clients that append versions of a few keys, each trying to be the first: conditional appends.

A claim is sent once and never again, so that its outcome is certain: appended, refused, or without
an answer. Claimants tell each other the last version that they know of, and are often late with it.
"""

from __future__ import annotations

import time

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.testing.histories.clients import ANSWER_SECONDS_MAX, IMPATIENT, Client, Scene
from millstream.testing.histories.history import Kind, Outcome, Send

KEYS = 3
CLAIM_TIMEOUT_MS = 5_000
WRONG_VERSIONS = 0.1  # of all claims
SETTING = "millstream.conditional.append"


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
        number = self.dice.randrange(KEYS)
        key = f"key-{number}"
        version = self.known.get(key, 0) + 1
        is_guess = self.dice.random() < WRONG_VERSIONS
        if is_guess:
            version = max(1, version + self.dice.choice((-1, 1, 2)))
        value = next(self.scene.values)
        answers: list[tuple[KafkaError | None, int | None]] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            answers.append((error, message.offset()))

        topic, partition = claimed_topic(self.scene.prefix), number % self.scene.partitions
        began_ns = time.monotonic_ns()
        producer.produce(
            topic,
            b"%d" % value,
            key,
            partition=partition,
            headers={"millstream-version": str(version)},
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
        if outcome is Outcome.OK or (outcome is Outcome.FAIL and not is_guess):
            self.known[key] = max(self.known.get(key, 0), version)
        self.record(
            Kind.CLAIM,
            began_ns,
            outcome=outcome,
            sends=[Send(f"{topic}-{partition}", value, offset if error is None else None)],
            key=key,
            version=version,
            error="" if error is None else str(error),
        )
        return outcome
