"""Faults of a random history: each is drawn, lasts for a while, and ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from millstream.testing.simulation.network import ZOOKEEPER

if TYPE_CHECKING:
    from millstream.testing.simulation.cluster import Cluster

FAULT_EVERY_MS = 600
LASTS_MAX_MS = 1_800


class Faults:
    """Injects faults until `stop`."""

    def __init__(self, cluster: Cluster, topics: list[str]) -> None:
        self._cluster = cluster
        self._topics = topics
        self.is_over = False
        self.counts: dict[str, int] = {}
        self._kinds: dict[str, tuple[int, Callable[[], None]]] = {
            "power cut": (4, lambda: self._kill(cuts_power=True)),
            "power cut of all": (1, self._cut_all_power),
            "kill": (3, lambda: self._kill(cuts_power=False)),
            "pause": (4, self._pause),
            "cut one way": (4, self._cut_one_way),
            "cut off": (3, self._cut_off),
            "cut from zookeeper": (4, self._cut_from_zookeeper),
            "expire session": (3, self._expire),
            "slow disk": (2, self._slow_disk),
            "bad network": (2, self._bad_network),
            "shut down": (2, self._shut_down),
            "move": (2, self._move),
            "unregister": (2, self._unregister),
            "delete records": (4, self._delete_records),
            "recreate topic": (1, self._recreate),
            "prefer leaders": (2, self._prefer),
        }
        self._schedule()

    def stop(self) -> None:
        """No more faults; all are healed and everything runs."""
        self.is_over = True
        cluster = self._cluster
        cluster.network.heal()
        cluster.prefers_leaders = True
        for host in cluster.hosts:
            cluster.disks[host].delay_max_ms = 5
            process = cluster.processes.get(host)
            if process is not None and process.is_paused:
                cluster.world.resume(process)
            cluster.start(host)

    def _schedule(self) -> None:
        delay_ms = self._cluster.world.random.randint(1, 2 * FAULT_EVERY_MS)
        self._cluster.world.after(delay_ms, "a fault", self._inject)

    def _inject(self) -> None:
        if self.is_over:
            return
        names = list(self._kinds)
        weights = [self._kinds[name][0] for name in names]
        [name] = self._cluster.world.random.choices(names, weights)
        self._cluster.world.note(f"FAULT {name}")
        self.counts[name] = self.counts.get(name, 0) + 1
        self._kinds[name][1]()
        self._schedule()

    def _later(self, name: str, action: Callable[[], None]) -> None:
        """End a fault, unless healing has done so."""

        def end() -> None:
            if not self.is_over:
                action()

        delay_ms = self._cluster.world.random.randint(50, LASTS_MAX_MS)
        self._cluster.world.after(delay_ms, name, end)

    def _any_host(self) -> int:
        return self._cluster.world.random.choice(self._cluster.hosts)

    def _kill(self, *, cuts_power: bool) -> None:
        host = self._any_host()
        self._cluster.kill(host, cuts_power=cuts_power)
        self._later("start again", lambda: self._cluster.start(host))

    def _cut_all_power(self) -> None:
        for host in self._cluster.hosts:
            self._cluster.kill(host, cuts_power=True)
            self._later("start again", lambda host=host: self._cluster.start(host))  # type: ignore[misc]

    def _pause(self) -> None:
        process = self._cluster.processes.get(self._any_host())
        if process is not None and not process.is_paused:
            process.is_paused = True
            self._later("resume", lambda: self._cluster.world.resume(process))

    def _cut_one_way(self) -> None:
        source, target = self._cluster.world.random.sample(self._cluster.hosts, 2)
        self._cluster.network.cut(source, target)
        self._later("heal", self._cluster.network.heal)

    def _cut_off(self) -> None:
        """A host loses all other brokers, and keeps ZooKeeper and its clients."""
        host = self._any_host()
        for other in self._cluster.hosts:
            if other != host:
                self._cluster.network.cut(host, other)
                self._cluster.network.cut(other, host)
        self._later("heal", self._cluster.network.heal)

    def _cut_from_zookeeper(self) -> None:
        host = self._any_host()
        ways = self._cluster.world.random.choice([1, 2, 3])
        if ways & 1:
            self._cluster.network.cut(host, ZOOKEEPER)
        if ways & 2:
            self._cluster.network.cut(ZOOKEEPER, host)
        self._later("heal", self._cluster.network.heal)

    def _expire(self) -> None:
        sessions = list(self._cluster.zookeeper.sessions)
        if sessions:
            self._cluster.zookeeper.expire(self._cluster.world.random.choice(sessions))

    def _slow_disk(self) -> None:
        disk = self._cluster.disks[self._any_host()]
        disk.delay_max_ms = 400

        def end() -> None:
            disk.delay_max_ms = 5

        self._later("the disk is fast again", end)

    def _bad_network(self) -> None:
        self._cluster.network.loss = 0.05
        self._cluster.network.delay_max_ms = 120
        self._later("heal", self._cluster.network.heal)

    def _shut_down(self) -> None:
        process = self._cluster.processes.get(self._any_host())
        if process is not None and not process.is_paused:
            process.shut_down()

    def _move(self) -> None:
        self._cluster.reassign(self._cluster.world.random.choice(self._topics), 0)

    def _unregister(self) -> None:
        """Somebody thinks that a broker that is down will not come back; it does."""
        down = [it.id for it in self._cluster.zookeeper.image.brokers.values() if it.fenced]
        if down:
            self._cluster.unregister(self._cluster.world.random.choice(down))

    def _delete_records(self) -> None:
        """A leader deletes old records, below its high watermark."""
        cluster = self._cluster
        key, partition = cluster.world.random.choice([*cluster.partitions().items(), (None, None)])
        process = cluster.processes.get(partition.leader) if partition is not None else None
        replica = process.replicas.get(key) if process is not None and key is not None else None
        if replica is None or replica.leader is None or key is None:
            return
        share = min(
            1.0, 2 * cluster.world.random.random()
        )  # often all, so that followers are wiped
        offset = cluster.invariants.committed_offset(key, share)
        if offset <= replica.high_watermark:
            replica.log.delete_records_before(offset)

    def _recreate(self) -> None:
        topic = self._cluster.world.random.choice(self._topics)
        self._cluster.delete_topic(topic)
        self._later("create the topic again", lambda: self._cluster.create_topic(topic, 2))

    def _prefer(self) -> None:
        self._cluster.prefers_leaders = True

        def end() -> None:
            self._cluster.prefers_leaders = False

        self._later("leaders stay", end)
