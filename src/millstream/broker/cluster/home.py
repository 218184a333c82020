"""The home of the cluster's metadata in ZooKeeper: an ordered log by compare-and-set.

The nodes are described in `nodes`. A broker decides on the image that it has and commits on the
head's version: if another broker has committed meanwhile, it reads what it missed and decides
again. A decision that refuses, or has nothing to do, counts only on the newest image there is.

Unknown outcomes: if the connection is lost during a commit, the entry may exist or not, or may
still come. Each attempt has a nonce. After the connection is back, the broker reads on; if it finds
an entry with a nonce of its own attempts, the commit has succeeded. Otherwise it decides and
commits again on the same version, and at most one of the attempts succeeds.

Notices come from a watch of the head, and are coalesced. The image and the head change only while
`_changing` is held.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from millstream.broker.cluster.nodes import (
    HEAD,
    LOG,
    NONCE_BYTES,
    SNAPSHOTS,
    Entry,
    Head,
    decode_entry,
    encode_entry,
    entry_path,
)
from millstream.broker.cluster.session import (
    BadVersion,
    Check,
    Create,
    NodeExists,
    NoNode,
    NotConnected,
    OutcomeUnknown,
    SessionEvent,
    SetData,
    ZooKeeperError,
    ZooKeeperSession,
)
from millstream.broker.cluster.snapshots import delete_replaced, read_snapshot, write_snapshot
from millstream.broker.metadata.store import Decision, Subscriber, run_to_its_end
from millstream.coordination.cluster import ClusterImage
from millstream.coordination.cluster_features import missing_features, why_cannot_join
from millstream.coordination.cluster_records import MetadataRecord, RegisterBrokerRecord
from millstream.coordination.cluster_replay import ClusterReplay
from millstream.coordination.record_codec import CorruptRecord, UnknownVersion
from millstream.errors import ApiError, ErrorCode, MillstreamError, StorageError

if TYPE_CHECKING:
    from millstream.clock import Clock

logger = logging.getLogger(__name__)

CHANGE_SECONDS_MAX = 10.0  # then a change that cannot reach ZooKeeper fails; clients retry
ENTRIES_AT_ONCE = 50  # read together
ENTRIES_PER_SNAPSHOT = 2_000
ENTRIES_KEPT = 500  # before a snapshot, so that brokers that lag a little need not read all of it
RETRY_SECONDS = 0.5
PAUSE_SECONDS = 0.01  # between the loss of a connection and its notice

Works = list[Awaitable[object]]


class Fenced(MillstreamError):
    """A commit of a former controller was refused."""


class Member(Protocol):
    """What the home needs of this broker's membership."""

    @property
    def is_live(self) -> bool: ...

    @property
    def controller_id(self) -> int | None: ...

    @property
    def controller_epoch(self) -> int: ...

    async def register(self, broker: RegisterBrokerRecord) -> None: ...

    async def leave(self) -> None: ...


class ZooKeeperMetadata:
    """See the module."""

    has_controller = True
    has_workers = False

    def __init__(
        self,
        session: ZooKeeperSession,
        clock: Clock,
        *,
        snapshot_bytes: int,
        entries_kept: int = ENTRIES_KEPT,
    ) -> None:
        self._session = session
        self._clock = clock
        self._snapshot_bytes = snapshot_bytes
        self._entries_kept = entries_kept
        self._image = ClusterImage()
        self._head = Head()
        self._head_version = -1  # ZooKeeper's, of the node
        self._entry = 0  # the image is that of this entry
        self._bytes_since_snapshot = 0
        self._own_nonces: set[bytes] = set()  # of attempts whose outcome is unknown
        self._has_found_own = False  # one of them has succeeded
        self._deleted_topic_ids: frozenset[UUID] = frozenset()
        self._subscribers: list[Subscriber] = []
        self._changing = asyncio.Lock()
        self._noticed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_snapshotting = False
        self.member: Member | None = None

    # MetadataLog

    @property
    def image(self) -> ClusterImage:
        return self._image

    @property
    def deleted_topic_ids(self) -> AbstractSet[UUID]:
        return self._deleted_topic_ids

    @property
    def is_live(self) -> bool:
        return self.member is not None and self.member.is_live

    @property
    def controller_id(self) -> int | None:
        return None if self.member is None else self.member.controller_id

    @property
    def controller_epoch(self) -> int:
        return 0 if self.member is None else self.member.controller_epoch

    def subscribe(self, subscriber: Subscriber) -> None:
        self._subscribers.append(subscriber)

    async def start(self) -> None:
        """Read everything, and follow the log from now on. Raises if it cannot be read."""
        await self._session.repeating(self._create_nodes)
        try:
            async with self._changing:
                await self._session.repeating(self._read_newest)
            problem = why_cannot_join(self._image.features)
        except UnknownVersion as error:
            problem = str(error)
        except CorruptRecord as error:
            raise StorageError(
                f"the metadata in ZooKeeper at {self._session.hosts} cannot be read: {error}; "
                "restore the data of ZooKeeper"
            ) from error
        if problem is not None:
            raise StorageError(
                f"the cluster in ZooKeeper at {self._session.hosts} was upgraded to a newer "
                f"version of Millstream: {problem}; install that version on this broker"
            )
        self._session.listeners.append(self._on_session)
        self._spawn(self._follow())
        await self._finalize_features()

    async def _finalize_features(self) -> None:
        await self.change(lambda image: missing_features(image.features, image.broker_features))

    async def _create_nodes(self) -> None:
        for path in (LOG, SNAPSHOTS):
            await self._session.ensure(path)
        with contextlib.suppress(NodeExists):
            await self._session.create(HEAD, Head().encode())

    async def refresh(self) -> ClusterImage:
        try:
            async with self._changing:
                self._let_run(await self._read_newest())
                return self._image
        except (ZooKeeperError, StorageError) as error:
            raise _plain(error) from error

    async def change(self, decide: Decision) -> ClusterImage:
        return await self.change_if(decide)

    async def change_if(self, decide: Decision, *conditions: Check) -> ClusterImage:
        """As `change`, if the conditions are met when it is committed: raises `Fenced` if not."""
        image, works = await run_to_its_end(self._change(decide, conditions))
        for work in works:
            await work
        return image

    async def register(self, broker: RegisterBrokerRecord) -> None:
        """Levels may rise afterwards: what this broker supported before an upgrade no longer
        counts."""
        assert self.member is not None
        await self.member.register(broker)
        await self._finalize_features()

    async def close(self) -> None:
        if self.member is not None:
            await self.member.leave()
        async with self._changing:
            self._session.listeners.remove(self._on_session)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Committing

    async def _change(
        self, decide: Decision, conditions: Sequence[Check]
    ) -> tuple[ClusterImage, Works]:
        """One at a time: the next decision sees the outcome of this one."""
        works: Works = []
        try:
            async with asyncio.timeout(CHANGE_SECONDS_MAX), self._changing:
                self._own_nonces.clear()
                self._has_found_own = False
                await self._decide_and_commit(decide, conditions, works)
                self._snapshot_if_due()
                return self._image, works
        except TimeoutError:
            self._let_run(works)
            late = NotConnected(
                f"ZooKeeper at {self._session.hosts} did not answer within {CHANGE_SECONDS_MAX:g} s"
            )
            raise _plain(late, is_change=True) from None
        except (ZooKeeperError, StorageError) as error:
            self._let_run(works)
            raise _plain(error, is_change=True) from error
        except BaseException:
            self._let_run(works)
            raise

    async def _decide_and_commit(
        self, decide: Decision, conditions: Sequence[Check], works: Works
    ) -> None:
        is_newest = False
        while not self._has_found_own:
            try:
                records = decide(self._image)
            except Exception:
                if is_newest:
                    raise
                records = ()
            if not records and is_newest:
                return
            try:
                if records:
                    await self._commit(records, conditions, works)
                    return
                works += await self._read_newest()
                is_newest = True
            except (Conflict, OutcomeUnknown, NotConnected):
                works += await self._read_patiently()
                is_newest = True

    async def _commit(
        self, records: Sequence[MetadataRecord], conditions: Sequence[Check], works: Works
    ) -> None:
        image = self._image.apply(records, self._image.version + len(records))
        head = self._head._replace(entry=self._entry + 1)
        nonce = secrets.token_bytes(NONCE_BYTES)
        base_offset = self._image.version + 1
        data = encode_entry(nonce, records, base_offset=base_offset, now_ms=self._clock.now_ms())
        self._own_nonces.add(nonce)
        try:
            await self._session.commit(
                [
                    *conditions,
                    SetData(HEAD, head.encode(), self._head_version),
                    Create(entry_path(head.entry), data),
                ]
            )
        except (BadVersion, NodeExists, NoNode) as error:
            self._own_nonces.discard(nonce)
            if any(error.path == condition.path for condition in conditions):
                raise Fenced(f"{error.path} has changed: this broker has been replaced") from None
            raise Conflict from None
        self._head, self._head_version = head, self._head_version + 1
        self._bytes_since_snapshot += len(data)
        works += self._advance(image, head.entry)

    # Reading

    async def _read_patiently(self) -> Works:
        """Read the newest, as soon as there is a connection."""
        while True:
            await self._session.wait_until_connected()
            try:
                return await self._read_newest()
            except (OutcomeUnknown, NotConnected):
                await asyncio.sleep(PAUSE_SECONDS)

    async def _read_newest(self) -> Works:
        await self._session.sync()
        return await self._read_on()

    async def _read_on(self) -> Works:
        """Read the entries that are missing here."""
        before = None
        while True:
            node = await self._session.get(HEAD, self._noticed.set)
            head = Head.decode(node.data)
            try:
                if head.entry < self._entry:
                    raise NoNode(f"entry {self._entry}")  # this server may be behind others
                image, first = self._image, self._entry + 1
                if first < head.first:
                    image, entry = await read_snapshot(self._session, head.snapshot)
                    first = entry + 1
                entries = await self._read_entries(first, head.entry)
            except NoNode as error:
                if head == before:
                    raise StorageError(
                        f"ZooKeeper at {self._session.hosts} has lost cluster metadata: {HEAD} is "
                        f"at entry {head.entry}, this broker at {self._entry} ({error}); restore "
                        "the data of ZooKeeper"
                    ) from None
                before = head  # or a snapshot may have replaced it since the head was read
                await self._session.sync()
                continue
            break
        if head.snapshot != self._head.snapshot:
            self._bytes_since_snapshot = 0
        self._head, self._head_version = head, node.version
        if head.entry == self._entry:
            return []
        return self._apply(image, entries)

    async def _read_entries(self, first: int, last: int) -> list[Entry]:
        entries: list[Entry] = []
        for start in range(first, last + 1, ENTRIES_AT_ONCE):
            numbers = range(start, min(start + ENTRIES_AT_ONCE, last + 1))
            nodes = await asyncio.gather(*(self._session.get(entry_path(it)) for it in numbers))
            entries += [decode_entry(node.data) for node in nodes]
        return entries

    def _apply(self, image: ClusterImage, entries: Iterable[Entry]) -> Works:
        replay = ClusterReplay(image)
        for entry in entries:
            replay.add(entry.records, entry.version)
            self._has_found_own |= entry.nonce in self._own_nonces
            self._bytes_since_snapshot += entry.size_bytes
        image = replay.finish()
        if self._entry == 0:
            self._deleted_topic_ids = frozenset(replay.deleted_topic_ids)
        return self._advance(image, self._head.entry)

    def _advance(self, image: ClusterImage, entry: int) -> Works:
        before, self._image, self._entry = self._image, image, entry
        works = [subscriber(before, image) for subscriber in self._subscribers]
        return [work for work in works if work is not None]

    # Following

    def _on_session(self, event: SessionEvent) -> None:
        if event is not SessionEvent.DISCONNECTED:
            self._noticed.set()

    async def _follow(self) -> None:
        while True:
            await self._noticed.wait()
            self._noticed.clear()
            try:
                async with self._changing:
                    works = await self._read_on()
                self._let_run(works)
            except (NotConnected, OutcomeUnknown):
                pass  # noticed again when connected
            except Exception:
                logger.exception("cannot read the cluster metadata; retrying")
                await asyncio.sleep(RETRY_SECONDS)
                self._noticed.set()

    def _let_run(self, works: Works) -> None:
        """Work of subscribers that no caller waits for."""
        for work in works:
            self._spawn(_finish(work))

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Snapshots

    def _snapshot_if_due(self) -> None:
        entries = self._entry - (int(self._head.snapshot[:10]) if self._head.snapshot else 0)
        is_due = (
            entries >= ENTRIES_PER_SNAPSHOT or self._bytes_since_snapshot >= self._snapshot_bytes
        )
        if is_due and not self._is_snapshotting:
            self._is_snapshotting = True
            self._spawn(self._snapshot())

    async def _snapshot(self) -> None:
        try:
            entry, image = self._entry, self._image
            name = await write_snapshot(self._session, image, entry, self._clock.now_ms())
            async with self._changing:
                await self._name_snapshot(name, entry)
                head = self._head
            await delete_replaced(self._session, head)
        except ZooKeeperError as error:
            # The log is complete without it: retry with a later commit.
            logger.warning("failed to write a metadata snapshot: %s", error)
        finally:
            self._is_snapshotting = False

    async def _name_snapshot(self, name: str, entry: int) -> None:
        """Make it count, unless another broker's is newer."""
        while name > self._head.snapshot:
            first = max(self._head.first, entry + 1 - self._entries_kept)
            head = self._head._replace(first=first, snapshot=name)
            try:
                await self._session.commit([SetData(HEAD, head.encode(), self._head_version)])
            except BadVersion:
                self._let_run(await self._read_on())
                continue
            self._head, self._head_version = head, self._head_version + 1
            self._bytes_since_snapshot = 0


def _plain(error: MillstreamError, *, is_change: bool = False) -> ApiError:
    """The error that clients get. The original names nodes and servers: it is for the log."""
    logger.error("cannot read or change the cluster metadata: %s", error)
    if isinstance(error, NotConnected | OutcomeUnknown):
        unknown = ": whether the metadata was changed is unknown" if is_change else ""
        return ApiError(
            ErrorCode.REQUEST_TIMED_OUT,
            f"this broker cannot reach ZooKeeper{unknown}; try again, and look into the broker's "
            "log if it lasts",
        )
    done = "changed" if is_change else "read"
    return ApiError(
        ErrorCode.UNKNOWN_SERVER_ERROR,
        f"the cluster metadata in ZooKeeper cannot be {done}; the broker's log has the reason",
    )


class Conflict(MillstreamError):
    """Another broker has committed first."""


async def _finish(work: Awaitable[object]) -> None:
    try:
        await work
    except Exception:
        logger.exception("cannot carry out a change of the metadata")
