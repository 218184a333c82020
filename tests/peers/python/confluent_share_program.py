"""confluent-kafka's share consumer as a program: see tests/peers/share_consumers.py."""

from __future__ import annotations

import json
import sys
from typing import Any

from confluent_kafka import KafkaException, Message, ShareConsumer, TopicPartition

from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.python.serve import Command, say


class Session:
    def __init__(self, command: Command) -> None:
        self.topic = command["topic"]
        self.told: list[tuple[int, list[int], str | None]] = []
        self.consumer = ShareConsumer(
            {
                "bootstrap.servers": command["bootstrap"],
                "group.id": command["group"],
                "share.acknowledgement.mode": "explicit" if command["explicit"] else "implicit",
                "log_level": 0,
                **command["config"],
            }
        )
        self.consumer.set_acknowledgement_commit_callback(self.tell)
        self.consumer.subscribe([self.topic])

    def tell(self, offsets: dict[TopicPartition, set[int]], error: KafkaException | None) -> None:
        for partition, of_partition in offsets.items():
            self.told.append((partition.partition, sorted(of_partition), name_of(error)))

    def do(self, command: Command) -> None:
        match command["do"]:
            case "poll":
                messages = self.consumer.poll(command["timeout_ms"] / 1000)
                say(records=[described(message) for message in messages])
            case "acknowledge":
                for partition, offset, kind in command["types"]:
                    self.consumer.acknowledge_offset(self.topic, partition, offset, kind)
                say(acknowledged=len(command["types"]))
            case "commit":
                results = self.consumer.commit_sync(PATIENCE_SECONDS)
                say(partitions=[[it.partition, name_of(error)] for it, error in results.items()])
            case "callbacks":
                self.consumer.commit_async()  # callbacks come from within calls
                say(callbacks=self.told)
                self.told = []


def described(message: Message) -> dict[str, Any]:
    if message.error() is not None:
        raise RuntimeError(str(message.error()))
    return {
        "partition": message.partition(),
        "offset": message.offset(),
        "value": (message.value() or b"").decode(),
        "delivery_count": message.delivery_count(),
    }


def name_of(error: KafkaException | None) -> str | None:
    return None if error is None else str(error.args[0].name())


def main() -> None:
    session = Session(json.loads(sys.stdin.readline()))
    say(joined=True)
    while line := sys.stdin.readline():
        try:
            session.do(json.loads(line))
        except Exception as error:  # noqa: BLE001 -- whatever the client raises, the test shall see it
            say(error=repr(error))
    session.consumer.close()


if __name__ == "__main__":
    main()
