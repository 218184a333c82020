"""Halting versions at equal offsets: an operator asks in the store, and running versions answer.

    operator                                running version
    writes a halt without a cut      -->    writes its halt file: no batch is planned any more;
                                     <--    answers that it has seen it
    asks the brokers for the ends,
    and writes them as the cut       -->    goes on, up to the cut;
                                     <--    answers with its position, and whether it is at rest
    works
    removes the halt                 -->    removes its halt file, and goes on

Nothing relies on it for safety: an operation compares positions in its own transaction. A halt only
makes them meet. It is a lease: the operator renews it, and a version that sees no renewal for
`LEASE_SECONDS` goes on. So does a version that is started while an operator is dead.

A version that does not run has a fixed position. The cut must then be there, and the others must
not have passed it.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.connect.tables.spec import HALTS_TABLE, RUNS_TABLE
from millstream.errors import ConfigError, MillstreamError
from millstream.partitions import TopicPartition
from millstream.pipelines.offsets import Offsets, count_between, from_json, to_json
from millstream.pipelines.reading.cuts import Cut, write_cut
from millstream.pipelines.versions.catalog import Catalog, Work, open_catalog
from millstream.pipelines.versions.registry import identity_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger(__name__)

LEASE_SECONDS = 30.0
ANSWER_SECONDS = 20.0  # after which a version is taken to have ended without saying so
POLL_SECONDS = 0.25
HALT_SECONDS_MAX = 600.0
REST_SECONDS = 1.0  # a query is at rest if it has been idle for so long, or for two triggers
# What Spark says of a query that computes a batch, with data or without.
BUSY = ("Processing", "No new data", "Initializing", "Starting")


@dataclass(frozen=True)
class HaltRequest:
    """What an operator asks for; `renewed` counts up while it lives."""

    token: str
    cut: Offsets | None
    renewed: int


@dataclass(frozen=True)
class Answer:
    """What a running version answers to the halt `token`."""

    token: str | None
    has_cut: bool = False
    is_at_rest: bool = False
    watermark_ms: int | None = None


class HaltedElsewhere(MillstreamError):
    """Another operator has halted the versions of this pipeline."""


# The tables


def read_halt(work: Work, pipeline: str) -> HaltRequest | None:
    found = work.execute(
        f"SELECT token, cut, renewed FROM {HALTS_TABLE} WHERE pipeline = ?", (pipeline,)
    )
    if not found:
        return None
    token, cut, renewed = found[0]
    return HaltRequest(token, None if cut is None else from_json(json.loads(cut)), int(renewed))


def read_answer(work: Work, query: str) -> Answer | None:
    """None if the query does not run, or has been killed before it could answer."""
    found = work.execute(f"SELECT document FROM {RUNS_TABLE} WHERE query = ?", (query,))
    return Answer(**json.loads(found[0][0])) if found else None


def write_answer(work: Work, query: str, answer: Answer) -> None:
    work.execute(
        f"INSERT INTO {RUNS_TABLE} (query, token, document) VALUES (?, ?, ?) "
        "ON CONFLICT (query) DO UPDATE SET token = excluded.token, document = excluded.document",
        (query, answer.token, json.dumps(asdict(answer))),
    )


def forget_run(work: Work, query: str) -> None:
    work.execute(f"DELETE FROM {RUNS_TABLE} WHERE query = ?", (query,))


# The cut


def in_common(one: Offsets, other: Offsets) -> set[TopicPartition]:
    """All partitions of the topics that both have: versions may read different topics."""
    topics = {topic for topic, _ in one} & {topic for topic, _ in other}
    return {it for it in (*one, *other) if it[0] in topics}


def is_at(position: Offsets, cut: Offsets) -> bool:
    """A partition without an offset has not been read."""
    return all(position.get(it, 0) == cut.get(it, 0) for it in in_common(position, cut))


def is_past(position: Offsets, cut: Offsets) -> bool:
    return any(position.get(it, 0) > cut.get(it, 0) for it in in_common(position, cut))


def choose_cut(
    positions: Mapping[str, Offsets], running: Mapping[str, bool], ends: Offsets
) -> Offsets:
    """Where all versions can meet; raises `ConfigError` if they cannot.

    `ends` are the ends of the topics, asked for after all running versions had halted.
    """
    standing = {version: it for version, it in positions.items() if not running[version]}
    if not standing:
        return dict(ends)
    first, cut = next(iter(standing.items()))
    for version, position in positions.items():
        if running[version]:
            if is_past(position, cut):
                raise ConfigError(
                    f"version {first} does not run and stands {count_between(cut, position)} "
                    f"records behind version {version}: start it, `millstream deploy ... --version "
                    f"{first}`"
                )
        elif not is_at(position, cut):
            raise ConfigError(
                f"versions {first} and {version} do not run, and stand at different offsets "
                f"({json.dumps(to_json(cut))}, {json.dumps(to_json(position))}): start them, "
                "`millstream deploy ... --version VERSION`"
            )
    return cut


# The operator


class Operator:
    """An operation on the versions of a pipeline, which holds them at a cut."""

    def __init__(
        self,
        catalog: Catalog,
        pipeline: str,
        versions: tuple[str, ...],
        *,
        seconds_max: float = HALT_SECONDS_MAX,
        show: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._catalog = catalog
        self._pipeline = pipeline
        self._versions = versions
        self._seconds_max = seconds_max
        self._show = show
        self._token = uuid.uuid4().hex
        self._renewed = 0
        self._renewed_at = 0.0

    def positions(self) -> dict[str, Offsets]:
        return self._catalog.read(
            lambda work: {it: position_of(work, self._pipeline, it) for it in self._versions}
        )

    def halt(self, ends: Callable[[], Offsets]) -> Offsets:
        """Bring all versions to a cut, which is returned; `ends` asks for the topics' ends.

        Raises `ConfigError` if they cannot meet, or do not in time.
        """
        self._claim()
        self._show(f"halting versions {' and '.join(self._versions)} at equal offsets")
        running = self._running()
        cut = choose_cut(self.positions(), running, ends())
        self._renew(cut)
        deadline = time.monotonic() + self._seconds_max
        shown: dict[str, int] = {}
        while True:
            answers = self._answers()
            positions = self.positions()
            behind = {it: count_between(positions[it], cut) for it in self._versions}
            if all(is_at(positions[it], cut) for it in self._versions) and all(
                answers[it] is None or answers[it].is_at_rest  # type: ignore[union-attr]
                for it in self._versions
                if running[it]
            ):
                return cut
            if time.monotonic() > deadline or any(is_past(it, cut) for it in positions.values()):
                raise ConfigError(
                    f"the versions of {self._pipeline} do not halt at one cut (records behind it: "
                    + ", ".join(f"version {it} {count}" for it, count in behind.items())
                    + "): look whether their processes run, and repeat"
                )
            if behind != shown and any(behind.values()):
                counts = [f"version {it}: {count}" for it, count in behind.items()]
                self._show(f"records up to the cut: {', '.join(counts)}")
                shown = behind
            self._renew(cut)
            time.sleep(POLL_SECONDS)

    @contextmanager
    def renewing(self, cut: Offsets) -> Iterator[None]:
        """Renew the halt in a thread, on a connection of its own, during work that takes long."""
        ended = threading.Event()

        def renew() -> None:
            with open_catalog(self._catalog.url) as catalog, suppress(MillstreamError):
                while not ended.wait(LEASE_SECONDS / 4):
                    self._write_renewal(catalog, cut)

        thread = threading.Thread(target=renew, name="renew-halt", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def release(self) -> None:
        def remove(work: Work) -> None:
            work.execute(
                f"DELETE FROM {HALTS_TABLE} WHERE pipeline = ? AND token = ?",
                (self._pipeline, self._token),
            )

        with suppress(MillstreamError):  # it expires
            self._catalog.run(remove, "end the halt")

    def _claim(self) -> None:
        """Waits for a live operator to show itself: one that is dead renews nothing."""
        seen = self._catalog.read(lambda work: read_halt(work, self._pipeline))
        if seen is not None:
            self._show("another operation on these versions has not ended: is it alive?")
            deadline = time.monotonic() + LEASE_SECONDS
            while time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
                now = self._catalog.read(lambda work: read_halt(work, self._pipeline))
                if now is None:
                    break
                if now != seen:
                    raise HaltedElsewhere(
                        f"another operation holds the versions of {self._pipeline}: wait until it "
                        "has ended"
                    )

        def insert(work: Work) -> bool:
            now = read_halt(work, self._pipeline)
            if now is not None and now != seen:
                return False
            work.execute(f"DELETE FROM {HALTS_TABLE} WHERE pipeline = ?", (self._pipeline,))
            work.execute(
                f"INSERT INTO {HALTS_TABLE} (pipeline, token, cut, renewed) VALUES (?, ?, NULL, 0)",
                (self._pipeline, self._token),
            )
            return True

        if not self._catalog.run(insert, "halt"):
            raise HaltedElsewhere(f"another operation holds the versions of {self._pipeline}")

    def _running(self) -> dict[str, bool]:
        """Which versions run: those that answer to this halt."""
        started = self._answers()
        running = {it: started[it] is not None for it in self._versions}
        deadline = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < deadline:
            answers = self._answers()
            answered = {
                it: answer is not None and answer.token == self._token
                for it, answer in answers.items()
            }
            if all(answered[it] or answers[it] is None for it in self._versions):
                return answered
            self._renew(None)
            time.sleep(POLL_SECONDS)
        for it in self._versions:
            if running[it] and not answered[it]:
                self._show(f"version {it} does not answer: it is taken to have been killed")
        return answered

    def _answers(self) -> dict[str, Answer | None]:
        def read(work: Work) -> dict[str, Answer | None]:
            return {it: read_answer(work, identity_of(self._pipeline, it)) for it in self._versions}

        return self._catalog.read(read)

    def _renew(self, cut: Offsets | None) -> None:
        if cut is None and time.monotonic() - self._renewed_at < 1.0:
            return
        self._write_renewal(self._catalog, cut)

    def _write_renewal(self, catalog: Catalog, cut: Offsets | None) -> None:
        self._renewed += 1
        self._renewed_at = time.monotonic()
        text = None if cut is None else json.dumps(to_json(cut))

        def write(work: Work) -> int:
            return len(
                work.execute(
                    f"UPDATE {HALTS_TABLE} SET cut = ?, renewed = ? WHERE pipeline = ? "
                    "AND token = ? RETURNING pipeline",
                    (text, self._renewed, self._pipeline, self._token),
                )
            )

        if not catalog.run(write, "renew the halt"):
            raise HaltedElsewhere(
                f"another operation has taken over the versions of {self._pipeline}"
            )


@contextmanager
def halted(operator: Operator, ends: Callable[[], Offsets]) -> Iterator[Offsets]:
    """The cut at which the versions stand until the end of the block."""
    try:
        yield operator.halt(ends)
    finally:
        operator.release()


def position_of(work: Work, pipeline: str, version: str) -> Offsets:
    """Raises `ConfigError` if the version has not written yet."""
    stored = work.progress(identity_of(pipeline, version))
    if stored is None or stored.offsets is None:
        raise ConfigError(
            f"version {version} of {pipeline} has written nothing since it was deployed: start it, "
            f"`millstream deploy FILE.py:{pipeline} --version {version}`"
        )
    return from_json(json.loads(stored.offsets))


# The running version


@dataclass(frozen=True)
class Seen:
    """What can be seen of a running query."""

    batch_id: int
    is_idle: bool
    lag: int | None
    watermark_ms: int | None


class HaltWatch:
    """Answers operators for one running version, in a thread of its own, until the query ends."""

    def __init__(
        self,
        store_url: str,
        pipeline: str,
        version: str,
        halt_file: Path,
        look: Callable[[], Seen | None],
        *,
        rest_seconds: float = REST_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`look` returns None when the query has ended."""
        self._rest_seconds = rest_seconds
        self._url = store_url
        self._pipeline = pipeline
        self._version = version
        self._query = identity_of(pipeline, version)
        self._file = halt_file
        self._look = look
        self._clock = clock
        self._known: HaltRequest | None = None  # the last one
        self._known_at = 0.0  # when it was last renewed
        self._answered: Answer | None = None
        self._rest = (-1, 0.0)  # a batch, and since when the query has been idle after it
        self._is_caught_up = False
        self._warned = False

    def start(self) -> None:
        threading.Thread(target=self._run, name=f"halts-{self._query}", daemon=True).start()

    def _run(self) -> None:
        with open_catalog(self._url) as catalog:
            while (seen := self._look()) is not None:
                try:
                    self.step(catalog, seen)
                    self._warned = False
                except (MillstreamError, OSError) as error:  # the query itself notices, too
                    if not self._warned:
                        logger.warning("%s does not see halts: %s", self._query, error)
                    self._warned = True
                time.sleep(POLL_SECONDS)
            with suppress(MillstreamError, OSError):
                catalog.run(lambda work: forget_run(work, self._query), "end")
            self._file.unlink(missing_ok=True)

    def step(self, catalog: Catalog, seen: Seen) -> None:
        """Look once, and do what is asked."""
        halt = catalog.read(lambda work: read_halt(work, self._pipeline))
        now = self._clock()
        if halt != self._known:
            self._known, self._known_at = halt, now
            if halt is not None:
                write_cut(self._file, Cut(halt.cut))
        if halt is not None and now - self._known_at > LEASE_SECONDS:
            halt = None  # its operator is dead
        if halt is None:
            self._file.unlink(missing_ok=True)
        self._answer(catalog, halt, seen)
        if seen.lag == 0 and not self._is_caught_up:
            catalog.note_caught_up(self._pipeline, self._version)
            self._is_caught_up = True

    def _answer(self, catalog: Catalog, halt: HaltRequest | None, seen: Seen) -> None:
        now = self._clock()
        is_halted = halt is not None and halt.cut is not None
        if not (is_halted and seen.is_idle and seen.batch_id == self._rest[0]):
            self._rest = (seen.batch_id, now)
        answer = Answer(
            None if halt is None else halt.token,
            is_halted,
            is_halted and now - self._rest[1] >= self._rest_seconds,
            seen.watermark_ms,
        )
        if answer != self._answered:
            catalog.run(lambda work: write_answer(work, self._query, answer), "answer")
            self._answered = answer


def look_at(query: StreamingQuery) -> Callable[[], Seen | None]:
    """What `HaltWatch` sees of a query of Spark's."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from millstream.pipelines.running.status import lag_of

    def look() -> Seen | None:
        try:
            if not query.isActive:
                return None
            status, last = query.status, query.lastProgress
        except (PySparkException, Py4JError, OSError):  # the session was stopped
            return None
        progress: Mapping[str, Any] = {} if last is None else json.loads(last.json)
        return Seen(
            int(progress.get("batchId", -1)),
            not str(status["message"]).startswith(BUSY),
            lag_of(progress) if progress else None,
            watermark_ms(progress),
        )

    return look


def watermark_ms(progress: Mapping[str, Any]) -> int | None:
    """The watermark of a query's last batch; None if it has none."""
    from datetime import datetime

    text = (progress.get("eventTime") or {}).get("watermark")
    if text is None:
        return None
    return round(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000) or None
