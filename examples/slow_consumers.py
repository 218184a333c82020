"""A fast producer and a slow consumer, four times side by side: what does the topic do about it?

retain   keeps everything that retention allows: the consumer falls behind
drop     keeps the newest 100 KB that the group has not read: the consumer loses the oldest
hold     lets the producer wait until the consumer has caught up
reject   refuses records with an error, and the producer decides
"""

import threading
import time
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from millstream import Broker

RECORDS = 1000
POLICIES = ("retain", "drop", "hold", "reject")
SECONDS_PER_RECORD = 0.004  # of the consumer's work
COMMIT_EVERY = 10
PATIENCE_SECONDS = 120


@dataclass
class Scene:
    """One topic with its producer and its consumer."""

    servers: str
    policy: str
    sent: int = 0
    refused: int = 0
    read: int = 0
    lost: int = 0
    longest_wait: float = 0.0
    reason: str = ""
    is_reading: threading.Event = field(default_factory=threading.Event)
    is_written: threading.Event = field(default_factory=threading.Event)
    is_over: threading.Event = field(default_factory=threading.Event)

    def produce(self) -> None:
        producer = Producer({"bootstrap.servers": self.servers, "batch.size": 10_000})
        self.send(producer)
        self.is_reading.wait(PATIENCE_SECONDS)  # a group counts from its first commit on
        for _ in range(RECORDS - 1):
            self.send(producer)
            producer.poll(0)
        assert producer.flush(PATIENCE_SECONDS) == 0
        self.is_written.set()

    def send(self, producer: Producer) -> None:
        began = time.monotonic()

        def delivered(error: KafkaError | None, _: Message) -> None:
            self.longest_wait = max(self.longest_wait, time.monotonic() - began)
            if error is None:
                self.sent += 1
            else:
                self.refused += 1
                self.reason = error.name()

        producer.produce(self.policy, b"x" * 1000, on_delivery=delivered)

    def consume(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": f"readers-{self.policy}",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "fetch.message.max.bytes": 20_000,  # it reads ahead only a little
                "queued.max.messages.kbytes": 50,
                "fetch.queue.backoff.ms": 10,
            }
        )
        consumer.subscribe([self.policy])
        expected = 0
        while not self.is_over.is_set():
            message = consumer.poll(0.1)
            if message is None or message.error():
                continue
            self.lost += message.offset() - expected  # what is missing was dropped
            expected = message.offset() + 1
            time.sleep(SECONDS_PER_RECORD)
            self.read += 1
            if self.read % COMMIT_EVERY == 1:
                consumer.commit(message, asynchronous=False)
                if not self.is_reading.is_set():
                    self.is_reading.set()
                    self.is_written.wait(1)  # busy with the first record
        consumer.close()


def settings(policy: str) -> dict[str, str]:
    if policy == "retain":
        return {}
    return {
        "millstream.backlog.policy": policy,
        "millstream.backlog.bytes": "100000",
        "millstream.backlog.groups": f"readers-{policy}",
    }


def play(servers: str) -> list[Scene]:
    admin = AdminClient({"bootstrap.servers": servers})
    topics = [NewTopic(it, 1, config=settings(it)) for it in POLICIES]
    for created in admin.create_topics(topics).values():
        created.result()
    scenes = [Scene(servers, policy) for policy in POLICIES]
    consumers = [threading.Thread(target=scene.consume, daemon=True) for scene in scenes]
    producers = [threading.Thread(target=scene.produce, daemon=True) for scene in scenes]
    for thread in consumers + producers:
        thread.start()
    print("records sent and read:   " + "".join(f"{it:<18}" for it in POLICIES))
    began = time.monotonic()
    while any(thread.is_alive() for thread in producers) or scenes[1].lost == 0:
        row = "".join(f"{f'{scene.sent} {scene.read}':<18}" for scene in scenes)
        print(f"   after {time.monotonic() - began:4.1f} s         {row}")
        assert time.monotonic() - began < PATIENCE_SECONDS
        time.sleep(1)
    for scene in scenes:
        scene.is_over.set()
    for thread in consumers + producers:
        thread.join()
    return scenes


def main() -> None:
    with Broker.start() as broker:
        retain, drop, hold, reject = scenes = play(broker.bootstrap_servers)
    print()
    for it in scenes:
        refused = f"{it.refused} refused ({it.reason})" if it.refused else "none refused"
        unread = it.sent - it.read - it.lost
        print(
            f"{it.policy:<7} {it.sent} sent, {refused}, longest wait {it.longest_wait:.1f} s; "
            f"{it.read} read, {it.lost} lost, {unread} unread"
        )
    assert (retain.sent, retain.lost) == (RECORDS, 0)
    assert (drop.sent, drop.refused) == (RECORDS, 0)
    assert drop.lost > 0
    assert (hold.sent, hold.refused, hold.lost) == (RECORDS, 0, 0)
    assert (reject.lost, reject.reason) == (0, "POLICY_VIOLATION")
    assert 0 < reject.sent < RECORDS


if __name__ == "__main__":
    main()
