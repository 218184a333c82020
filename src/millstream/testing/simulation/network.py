"""The network: messages are delayed, reordered and lost, and links are cut in one direction.

Nodes are the brokers' ids, `ZOOKEEPER` and `CLIENT`. A message belongs to the process that existed
when it was sent: a restarted broker gets nothing of its predecessor's connections.
"""

from __future__ import annotations

from typing import TypeAlias

from millstream.testing.simulation.world import Action, Owner, World

ZOOKEEPER = 0
CLIENT = -1

Node: TypeAlias = int


class Network:
    def __init__(self, world: World) -> None:
        self._world = world
        self._cut: set[tuple[Node, Node]] = set()
        self.delay_max_ms = 10
        self.loss = 0.0  # the share of messages that are lost, with their connection

    def send(
        self, source: Node, target: Node, name: str, action: Action, owner: Owner | None
    ) -> None:
        """Run an action at the target, in the process `owner`, if the message arrives."""
        random = self._world.random
        delay_ms = random.randint(1, self.delay_max_ms)
        if (source, target) in self._cut or (self.loss and random.random() < self.loss):
            return
        label = f"{source}->{target} {name}"

        def deliver() -> None:
            if (source, target) not in self._cut:
                action()

        self._world.after(delay_ms, label, deliver, owner)

    def cut(self, source: Node, target: Node) -> None:
        """Lose all messages from the source to the target, also those under way."""
        self._cut.add((source, target))

    def heal(self) -> None:
        self._cut.clear()
        self.loss = 0.0
        self.delay_max_ms = 10
