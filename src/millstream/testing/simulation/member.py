"""A simulated broker's membership and metadata: its session, its image, its commits.

This is the part that the ZooKeeper home has in the broker: pings with its own timer, an image that
follows the log of commits, commits by compare-and-set that are decided again on a conflict and
resolved by their nonce if the answer is lost, and the election of the controller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from millstream.coordination.cluster import ClusterImage
from millstream.coordination.cluster_records import MetadataRecord, RegisterBrokerRecord
from millstream.coordination.replication import controller
from millstream.testing.simulation.hosts import new_uuid
from millstream.testing.simulation.network import ZOOKEEPER
from millstream.testing.simulation.surroundings import Broker
from millstream.testing.simulation.zookeeper import SESSION_MS, Answer, Entry

PING_MS = 200
ANSWER_MS = 300
SESSION_MARGIN_MS = 200

Decision: TypeAlias = Callable[[ClusterImage], Sequence[MetadataRecord]]


class Commit(NamedTuple):
    """A change that is to be committed."""

    name: str
    decide: Decision
    done: Callable[[], None]
    is_controllers: bool = False


class Member:
    """See the module."""

    def __init__(self, process: Broker) -> None:
        self._process = process
        self._cluster = process.cluster
        self._world = process.cluster.world
        self.image = ClusterImage()
        self._nonces: dict[int, int] = {}  # of the commits, by version
        self.incarnation = new_uuid(self._world.random)
        self.broker_epoch = -1  # until it is registered
        self._session = -1
        self._last_contact_ms = -SESSION_MS
        self._is_reading = False
        self._must_read = False
        self._queue: list[Commit] = []
        self._is_committing = False
        self._controller_epoch: int | None = None
        self._is_reconciling = False

    # What the broker asks

    @property
    def is_live(self) -> bool:
        """Whether the session cannot have ended, by the own clock."""
        passed_ms = self._world.now_ms - self._last_contact_ms
        return self.broker_epoch >= 0 and passed_ms < SESSION_MS - SESSION_MARGIN_MS

    @property
    def is_deciding(self) -> bool:
        """Whether a decision of this controller is on its way."""
        return self._is_committing and self._queue[0].is_controllers

    def commit(self, name: str, decide: Decision, done: Callable[[], None]) -> None:
        """Commit what is decided on the newest image; `done` when the outcome is known."""
        self._queue.append(Commit(name, decide, done))
        self._next_commit()

    # The session

    def start(self) -> None:
        self._open()
        self._ping()

    def _open(self) -> None:
        incarnation = self.incarnation
        sent_ms = self._world.now_ms

        def opened(answer: Any) -> None:
            if incarnation != self.incarnation:
                return
            if answer is Answer.UNKNOWN:
                self._open()
                return
            self._session = answer
            self._last_contact_ms = sent_ms
            self.read()
            self._register()

        self._ask(
            "open a session",
            lambda: self._cluster.zookeeper.open_session(
                self._process.id, incarnation, self._notify
            ),
            opened,
        )

    def _ping(self) -> None:
        sent_ms = self._world.now_ms
        self._process.after(PING_MS, "ping", self._ping)
        if self._session < 0:
            return
        session = self._session

        def answered(answer: Any) -> None:
            if session != self._session:
                return
            if answer is Answer.EXPIRED:
                self._expired()
            elif answer is Answer.DONE:
                self._last_contact_ms = max(self._last_contact_ms, sent_ms)
                self.read()  # a notice may have been lost
                self._work_as_controller()

        self._ask("ping", lambda: self._cluster.zookeeper.ping(session), answered)

    def _expired(self) -> None:
        """Join again, as another incarnation: others may lead what this broker has led."""
        self._world.note(f"session of {self._process.id} has ended")
        self._session = -1
        self.broker_epoch = -1
        self._controller_epoch = None
        self.incarnation = new_uuid(self._world.random)
        # Commits under way are void for what they were: their outcome is read from the log.
        self._open()

    def _register(self) -> None:
        incarnation = self.incarnation

        def decide(image: ClusterImage) -> Sequence[MetadataRecord]:
            broker = image.brokers.get(self._process.id)
            if incarnation != self.incarnation or (
                broker is not None and broker.incarnation_id == incarnation
            ):
                return ()
            record = RegisterBrokerRecord(self._process.id, incarnation, image.version + 1, ())
            return controller.register(image, record, has_kept_records=True)

        self.commit("register", decide, self._stay_registered)

    def _stay_registered(self) -> None:
        """Register again if somebody has unregistered this broker."""
        if self._process.id not in self.image.brokers:
            self._register()

    def _notify(self) -> None:
        """ZooKeeper sends a notice to this broker."""
        self._cluster.network.send(
            ZOOKEEPER, self._process.id, "notice", self._noticed, self._process
        )

    def _noticed(self) -> None:
        self.read()
        self._work_as_controller()

    # The image

    def read(self) -> None:
        """Read the commits that are missing."""
        if self._is_reading or self._session < 0:
            self._must_read = self._is_reading
            return
        self._is_reading = True
        session, version = self._session, self.image.version

        def answered(answer: Any) -> None:
            self._is_reading = False
            if isinstance(answer, list):
                self._apply(answer)
            elif answer is Answer.EXPIRED and session == self._session:
                self._expired()
            if self._must_read or answer is Answer.UNKNOWN:
                self._must_read = False
                self.read()

        self._ask("read", lambda: self._cluster.zookeeper.read(session, version), answered)

    def _apply(self, entries: list[Entry]) -> None:
        before = self.image
        for entry in entries:
            if entry.version == self.image.version + 1:
                self.image = self.image.apply(entry.records, entry.version)
                self._nonces[entry.version] = entry.nonce
        if self.image is before:
            return
        broker = self.image.brokers.get(self._process.id)
        if broker is not None and broker.incarnation_id == self.incarnation:
            self.broker_epoch = broker.epoch
        elif broker is None and self._process.id in before.brokers:
            self._register()
        self._process.image_changed()

    # Commits

    def _next_commit(self) -> None:
        if self._is_committing or not self._queue:
            return
        commit = self._queue[0]
        if self._session < 0:
            self._process.after(20, "wait for a session", self._retry)
            self._is_committing = True
            return
        records = commit.decide(self.image)
        if not records:
            self._finish()
            return
        self._is_committing = True
        self._send(commit, records, self.image.version, self._world.random.getrandbits(62))

    def _retry(self) -> None:
        self._is_committing = False
        self._next_commit()

    def _finish(self) -> None:
        self._is_committing = False
        self._queue.pop(0).done()
        self._next_commit()

    def _send(
        self, commit: Commit, records: Sequence[MetadataRecord], expected: int, nonce: int
    ) -> None:
        zookeeper = self._cluster.zookeeper
        epoch = self._controller_epoch if commit.is_controllers else None
        if commit.is_controllers and epoch is None:
            self._finish()
            return

        def answered(answer: Any) -> None:
            if answer is Answer.DONE:
                self._after_version(expected + 1, self._finish)
            elif answer is Answer.FENCED:
                self._controller_epoch = None
                self._finish()
            elif answer is Answer.CONFLICT:
                # Another commit came first; or this one, sent before with the answer lost.
                self._after_version(expected + 1, resolve)
            else:
                self.outcome_is_unknown()
                send_again()

        def resolve() -> None:
            if self._nonces.get(expected + 1) == nonce:
                self._finish()
            else:
                self._retry()

        def send_again() -> None:
            """The outcome is unknown. The same commit can be applied at most once."""
            if self.image.version > expected:
                resolve()
                return
            self.read()
            if self._session < 0:
                self._process.after(20, "wait for a session", send_again)
            else:
                self._send(commit, records, expected, nonce)

        self._ask(
            commit.name,
            lambda: zookeeper.commit(expected, nonce, records, epoch),
            answered,
        )

    def outcome_is_unknown(self) -> None:
        """No answer came, or the session has ended: the commit may be applied, even later."""

    def _after_version(self, version: int, action: Callable[[], None]) -> None:
        """Run an action when the image has reached a version."""
        if self.image.version >= version:
            action()
            return
        self.read()
        self._process.after(5, "wait for a version", lambda: self._after_version(version, action))

    # The controller

    def _work_as_controller(self) -> None:
        """Become the controller if there is none; decide what follows from the sessions."""
        if self._session < 0 or self.broker_epoch < 0 or self._is_reconciling:
            return
        self._is_reconciling = True
        zookeeper, session = self._cluster.zookeeper, self._session

        def look() -> Any:
            return zookeeper.elect(session), zookeeper.live()

        def answered(answer: Any) -> None:
            self._is_reconciling = False
            if answer is Answer.UNKNOWN:
                return
            elected, live = answer
            if elected is not None:
                self._world.note(f"{self._process.id} is controller, epoch {elected}")
                self._controller_epoch = elected
            if self._controller_epoch is not None:
                self._reconcile(live)

        self._ask("look as controller", look, answered)

    def _reconcile(self, live: dict[int, Any]) -> None:
        def decide(image: ClusterImage) -> Sequence[MetadataRecord]:
            records = self._cluster.reconcile(image, live)
            if not records and self._cluster.prefers_leaders:
                return controller.prefer(image)
            return records

        self._queue.append(Commit("reconcile", decide, lambda: None, is_controllers=True))
        self._next_commit()

    # Requests

    def _ask(self, name: str, request: Callable[[], Any], answered: Callable[[Any], None]) -> None:
        """Send a request to ZooKeeper; `answered` is called once, with UNKNOWN if no answer
        comes in time."""
        is_over = False

        def finish(answer: Any) -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                answered(answer)

        def arrive() -> None:
            answer = request()
            self._cluster.network.send(
                ZOOKEEPER,
                self._process.id,
                f"{name}: answer",
                lambda: finish(answer),
                self._process,
            )

        self._cluster.network.send(self._process.id, ZOOKEEPER, name, arrive, None)
        self._process.after(ANSWER_MS, f"{name}: no answer", lambda: finish(Answer.UNKNOWN))
