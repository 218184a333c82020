"""`/dead-letters`: topics of dead letters; letters by reason and origin, beside their errors;
replay with a dry run; purge; what became of replayed ones."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field
from datetime import UTC, datetime
from typing import Literal

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from millstream.admin.errors import OperationFailed
from millstream.admin.letters import (
    OWN_PREFIX,
    Filter,
    Letter,
    Position,
    dead_letter_topics,
    letter_counts,
    newest_letters,
    purge,
    read_letter,
)
from millstream.admin.reading import Reader, ReadRecord
from millstream.admin.replay import (
    Memory,
    Originals,
    Tally,
    plan_matching,
    plan_selected,
    replay_matching,
    replay_selected,
)
from millstream.admin.reset import partition_count
from millstream.admin.topics import check_same_topic, current_id
from millstream.admin.values import Decoder, Shown
from millstream.client.cluster import Cluster
from millstream.console.actions import Form, Refused, act, check_typed, command, post
from millstream.console.answers import page
from millstream.console.lists import Listed, Wanted, listed
from millstream.console.paths import link
from millstream.console.zones import in_full
from millstream.errors import ApiError, MillstreamError
from millstream.models import dataclass

LETTERS_MAX = 10_000  # that are looked at, the newest of each partition
SAMPLE_LETTERS = 200  # of each topic in the list of topics
READ_BYTES_MAX = 32 * 1024 * 1024
READ_SECONDS_MAX = 4.0
SAMPLE_BYTES_MAX = 1024 * 1024
DRY_RUN_BYTES_MAX = 256 * 1024 * 1024
REPLAYS_MAX = 2  # of whole topics at once; the user's other pages need their connections
KEPT_BYTES = 300
OPEN, REPLAYED, CAME_BACK = "open", "replayed", "came back"
CONDITIONS = ("group", "source", "reason", "since", "until")

_replays = threading.BoundedSemaphore(REPLAYS_MAX)


@dataclass(frozen=True)
class TopicRow:
    """A dead-letter topic in the list."""

    topic: str
    letters: int
    newest_ms: int | None
    reasons: tuple[tuple[str, int], ...]
    sources: tuple[str, ...]
    groups: tuple[str, ...]
    is_sample: bool


@dataclass(frozen=True)
class Topics:
    topics: Listed[TopicRow]
    letters: int


@dataclass(frozen=True)
class LetterRow:
    """A letter in the list."""

    partition: int
    offset: int
    written_ms: int
    origin: tuple[str, int, int] | None
    group: str
    source: str
    reason: str
    message: str
    delivery_count: int | None
    replay_count: int
    state: str
    came_back: Position | None
    key: str
    value: str


@dataclass(frozen=True)
class Slice:
    """Letters with the same group, source and reason."""

    group: str
    source: str
    reason: str
    letters: int
    open: int
    newest_ms: int


@dataclass(frozen=True)
class Letters:
    """The letters of a topic."""

    topic: str
    id: str  # empty if the cluster has no ids
    letters: Listed[LetterRow]
    slices: tuple[Slice, ...]
    total: int  # by the offsets
    read: int
    states: Mapping[str, int]
    is_partial: bool
    chosen: Filter
    state: str
    conditions: tuple[tuple[str, str], ...]
    purge_command: str


@dataclass(frozen=True)
class HeaderRow:
    name: str
    value: str


@dataclass(frozen=True)
class LetterPage:
    """One letter: the record beside its error."""

    topic: str
    partition: int
    offset: int
    written_ms: int
    origin: tuple[str, int, int] | None
    group: str
    reason: str
    message: str
    delivery_count: int | None
    replay_count: int
    failed_ms: int | None
    is_replayed: bool | None  # None: the user may not know
    replay_of: Position | None
    key: Shown
    value: Shown
    headers: tuple[HeaderRow, ...]
    errors: tuple[HeaderRow, ...]
    content: str  # where key and value are from: the letter, the original, or nowhere
    replay_command: str


@dataclass(frozen=True)
class ReplayPage:
    """A dry run."""

    topic: str
    which: Which
    letters: tuple[str, ...]
    conditions: tuple[tuple[str, str], ...]
    target: str
    tally: Tally
    is_partial: bool  # there are too many letters to look at all of them
    command: str


Which = Literal["selected", "matching", "all"]


@dataclass(frozen=True)
class Choice:
    """The letters that a replay is about."""

    which: Which
    letters: Sequence[str] = ()
    chosen: Filter = field(default_factory=Filter)

    @classmethod
    def of(cls, which: str, letters: Sequence[str], chosen: Filter) -> Choice:
        """Raises `Refused` if `which` does not say what else was sent: a selection of nothing
        must not become a replay of everything."""
        letters = [it for it in letters if it]
        match which:
            case "selected" if letters:
                return cls("selected", letters)
            case "selected":
                raise Refused("no letter is selected")
            case "matching" if chosen != Filter() and not letters:
                return cls("matching", chosen=chosen)
            case "matching":
                raise Refused(f"matching letters: give one of {', '.join(CONDITIONS)}")
            case "all" if chosen == Filter() and not letters:
                return cls("all")
            case "all":
                raise Refused("all letters: give neither letters nor conditions")
        raise Refused("say which letters: selected, matching or all")


# The list of topics


def load_topics(cluster: Cluster, wanted: Wanted) -> Topics:
    counts = letter_counts(cluster, dead_letter_topics(cluster))
    found = listed(
        counts.items(),
        wanted,
        text=lambda row: row[0],
        keys={"topic": lambda row: row[0], "letters": lambda row: row[1]},
        default="topic",
    )
    rows = [_topic_row(cluster, topic, count) for topic, count in found.rows]
    shown: Listed[TopicRow] = Listed(
        rows, found.total, found.found, found.page, found.pages, found.size, found.sort, found.q
    )
    return Topics(shown, sum(counts.values()))


def _topic_row(cluster: Cluster, topic: str, count: int) -> TopicRow:
    letters: list[Letter] = []
    if count:
        try:
            reader = _reader(cluster, topic, SAMPLE_BYTES_MAX)
            letters = newest_letters(cluster, topic, reader, SAMPLE_LETTERS)
        except ApiError:  # the user may see that it is there, not what is in it
            letters = []
    reasons = Counter(it.reason for it in letters)
    return TopicRow(
        topic,
        count,
        max((it.written_ms for it in letters), default=None),
        tuple(reasons.most_common(4)),
        tuple(sorted({it.source for it in letters}))[:4],
        tuple(sorted({it.group for it in letters}))[:4],
        len(letters) < count,
    )


def _reader(cluster: Cluster, topic: str, bytes_max: int = READ_BYTES_MAX) -> Reader:
    return Reader(
        cluster,
        topic,
        kept_bytes=KEPT_BYTES,
        bytes_max=bytes_max,
        seconds_max=READ_SECONDS_MAX,
    )


async def show(request: Request) -> Response:
    wanted = Wanted.of(request.query_params)
    return await page(
        request,
        "dead_letters.html",
        lambda cluster: load_topics(cluster, wanted),
        live={"rows": 5.0},
    )


# The letters of a topic


def chosen_of(values: Mapping[str, str]) -> Filter:
    """The filter that a query or a form asks for."""
    chosen = {name: values[name] for name in CONDITIONS if values.get(name)}
    for name in {"since", "until"} & chosen.keys():
        chosen[name] = in_full(chosen[name], values.get("zone", ""), datetime.now(UTC))
    return Filter(**chosen)


def load_letters(
    cluster: Cluster, topic: str, wanted: Wanted, chosen: Filter, state: str, request: Request
) -> Letters:
    matches = chosen.matcher()
    total = letter_counts(cluster, [topic]).get(topic)
    if total is None:
        partition_count(cluster, topic)  # raises that it is not there
    found = newest_letters(cluster, topic, _reader(cluster, topic), LETTERS_MAX)
    memory = load_memory(cluster, topic)
    came_back = {it.replay_of: it.position for it in found if it.replay_of is not None}
    decoder = Decoder()
    rows = [_letter_row(it, memory, came_back, decoder) for it in found if matches(it)]
    shown = listed(
        [row for row in rows if state in ("", row.state)],
        wanted,
        text=lambda row: " ".join((row.group, row.source, row.reason, row.message, row.key)),
        keys={
            "written": lambda row: (row.written_ms, row.offset),
            "group": lambda row: row.group,
            "reason": lambda row: row.reason,
            "source": lambda row: row.origin or ("", -1, -1),
            "deliveries": lambda row: row.delivery_count,
        },
        default="-written",
    )
    return Letters(
        topic,
        str(current_id(cluster, topic) or ""),
        shown,
        _slices(rows),
        total or 0,
        len(found),
        Counter(row.state for row in rows),
        len(found) < (total or 0),
        chosen,
        state,
        _conditions(chosen),
        command(request, "dlq", "purge", topic, "--yes"),
    )


def load_memory(cluster: Cluster, topic: str) -> Memory | None:
    """What was replayed, if the user may know."""
    try:
        return Memory.load(cluster, topic)
    except MillstreamError:  # not allowed, or the offsets of the group are not a replay's
        return None


def _letter_row(
    it: Letter, memory: Memory | None, came_back: Mapping[Position, Position], decoder: Decoder
) -> LetterRow:
    back = came_back.get(it.position)
    is_replayed = memory is not None and memory.was_replayed(it)
    return LetterRow(
        it.partition,
        it.offset,
        it.written_ms,
        it.origin[:3] if it.origin else None,
        it.group,
        it.source,
        it.reason,
        it.message,
        it.delivery_count,
        it.replay_count,
        CAME_BACK if back else REPLAYED if is_replayed else OPEN,
        back,
        _line(decoder.preview(it.key)),
        _line(decoder.preview(it.value)),
    )


def _line(shown: Shown) -> str:
    return shown.text or shown.form


def _slices(rows: Sequence[LetterRow]) -> tuple[Slice, ...]:
    counted: dict[tuple[str, str, str], Slice] = {}
    for row in rows:
        key = (row.group, row.source, row.reason)
        before = counted.get(key, Slice(*key, 0, 0, row.written_ms))
        counted[key] = Slice(
            *key,
            before.letters + 1,
            before.open + (row.state == OPEN),
            max(before.newest_ms, row.written_ms),
        )
    return tuple(sorted(counted.values(), key=lambda it: -it.letters))


def _conditions(chosen: Filter) -> tuple[tuple[str, str], ...]:
    return tuple((it, getattr(chosen, it)) for it in CONDITIONS if getattr(chosen, it) is not None)


async def one_topic(request: Request) -> Response:
    topic, query = request.path_params["name"], request.query_params
    wanted, chosen, state = Wanted.of(query), chosen_of(query), query.get("state", "")
    return await page(
        request,
        "dead_letter_topic.html",
        lambda cluster: load_letters(cluster, topic, wanted, chosen, state, request),
    )


# One letter


def load_letter(cluster: Cluster, topic: str, position: Position, request: Request) -> LetterPage:
    letter = read_letter(cluster, topic, position)
    memory = load_memory(cluster, topic)
    key, value, content = letter.key, letter.value, "letter"
    record_headers = [it for it in letter.raw_headers if not it[0].startswith(OWN_PREFIX)]
    if not letter.has_copy:
        original = _original(cluster, letter)
        content = "nowhere" if original is None else "original"
        if original is not None:
            key, value = original.key, original.value
            record_headers = [(it.name, it.value) for it in original.headers]
    decoder = Decoder()
    own = [it for it in letter.raw_headers if it[0].startswith(OWN_PREFIX)]
    return LetterPage(
        topic,
        letter.partition,
        letter.offset,
        letter.written_ms,
        letter.origin[:3] if letter.origin else None,
        letter.group,
        letter.reason,
        letter.message,
        letter.delivery_count,
        letter.replay_count,
        letter.failed_ms,
        None if memory is None else memory.was_replayed(letter),
        letter.replay_of,
        decoder.show(key),
        decoder.show(value),
        tuple(HeaderRow(name, _line(decoder.preview(it))) for name, it in record_headers),
        tuple(HeaderRow(name, _line(decoder.preview(it))) for name, it in own),
        content,
        command(request, "dlq", "replay", topic, "--letter", str(position), "--execute"),
    )


def _original(cluster: Cluster, letter: Letter) -> ReadRecord | None:
    try:
        return Originals(cluster).find(letter)
    except ApiError:  # the user may not read the original topic
        return None


async def one(request: Request) -> Response:
    topic, position = request.path_params["name"], _position(request)
    return await page(
        request,
        "dead_letter.html",
        lambda cluster: load_letter(cluster, topic, position, request),
    )


def _position(request: Request) -> Position:
    return Position(request.path_params["partition"], request.path_params["offset"])


# Replay


def load_replay(
    cluster: Cluster, topic: str, choice: Choice, target: str, request: Request
) -> ReplayPage:
    check_is_of_letters(cluster, topic)
    if target:
        partition_count(cluster, target)
    reader = _reader(cluster, topic, DRY_RUN_BYTES_MAX)
    if choice.which == "selected":
        tally = plan_selected(cluster, topic, map(Position.parse, choice.letters))
    else:
        tally = plan_matching(cluster, topic, choice.chosen.matcher(), reader=reader)
    return ReplayPage(
        topic,
        choice.which,
        tuple(choice.letters),
        _conditions(choice.chosen),
        target,
        tally,
        choice.which != "selected" and reader.is_spent,
        command(request, *replay_arguments(topic, choice, target)),
    )


def replay_arguments(topic: str, choice: Choice, target: str) -> list[str]:
    letters = [part for it in choice.letters for part in ("--letter", it)]
    where = ["--to", target] if target else []
    return ["dlq", "replay", topic, *(letters or choice.chosen.options()), *where, "--execute"]


async def ask_replay(request: Request) -> Response:
    topic, query = request.path_params["name"], request.query_params
    letters, chosen = query.getlist("letter"), chosen_of(query)
    # A dry run changes nothing, so that it may guess what is meant.
    guess = "selected" if letters else "matching" if chosen != Filter() else "all"
    choice = Choice.of(query.get("which") or guess, letters, chosen)
    target = query.get("to", "").strip()
    return await page(
        request,
        "dead_letter_replay.html",
        lambda cluster: load_replay(cluster, topic, choice, target, request),
    )


def do_replay(cluster: Cluster, topic: str, choice: Choice, target: str) -> Tally:
    check_is_of_letters(cluster, topic)
    to = target or None
    if choice.which == "selected":
        return replay_selected(cluster, topic, map(Position.parse, choice.letters), target=to)
    if not _replays.acquire(blocking=False):
        raise OperationFailed(f"{REPLAYS_MAX} replays are running; wait until one has ended")
    try:
        return replay_matching(cluster, topic, choice.chosen.matcher(), target=to)
    finally:
        _replays.release()


def outcome(tally: Tally) -> str:
    """What a replay did, in a sentence."""
    parts = [f"{tally.sent} {'letter is' if tally.sent == 1 else 'letters are'} replayed."]
    if tally.replayed_before:
        parts.append(f"{tally.replayed_before} had been replayed before.")
    if tally.duplicates:
        parts.append(f"{tally.duplicates} are duplicates of the same failure.")
    if tally.originals_gone:
        parts.append(f"{tally.originals_gone} have no copy of their record, which is gone.")
    return " ".join(parts)


async def replay(request: Request, form: Form) -> Response:
    topic = request.path_params["name"]
    letters, target = [it for it in form.all("letter") if it], form.get("to")
    chosen = chosen_of({it: form.get(it) for it in (*CONDITIONS, "zone")})
    choice = Choice.of(form.get("which", "selected" if letters else ""), letters, chosen)
    if choice.which == "all":
        check_typed(form, topic)
    return await act(
        request,
        do_replay,
        topic,
        choice,
        target,
        done=outcome,
        command=command(request, *replay_arguments(topic, choice, target)),
        back=link("dead-letters", topic),
    )


# Purge


def do_purge(cluster: Cluster, topic: str, only_replayed: bool) -> int:
    if not only_replayed:
        return purge(cluster, topic)
    memory = Memory.load(cluster, topic)
    places = [(topic, index) for index in range(partition_count(cluster, topic))]
    return purge(cluster, topic, {place: memory.replayed_below(*place) or 0 for place in places})


def check_is_of_letters(cluster: Cluster, topic: str) -> None:
    """The console purges and replays nothing else by these paths."""
    partition_count(cluster, topic)  # raises that it is not there
    if topic not in dead_letter_topics(cluster):
        raise OperationFailed(f"{topic} is not a topic of dead letters")


async def purge_letters(request: Request, form: Form) -> Response:
    topic = request.path_params["name"]
    check_typed(form, topic)
    which = form.get("which", "all")
    if which not in ("all", "replayed"):
        raise Refused(f"which letters: all or replayed, not {which!r}")
    options = ["--replayed"] if which == "replayed" else []
    topic_id = form.topic_id()

    def perform(cluster: Cluster) -> int:
        check_is_of_letters(cluster, topic)
        check_same_topic(cluster, topic, topic_id)
        return do_purge(cluster, topic, which == "replayed")

    return await act(
        request,
        perform,
        done=lambda count: f"{count} dead letters of {topic} are deleted.",
        command=command(request, "dlq", "purge", topic, *options, "--yes"),
        back=link("dead-letters", topic),
    )


ROUTES = [
    Route("/dead-letters", show),
    Route("/dead-letters/{name:name}", one_topic),
    Route("/dead-letters/{name:name}/replay", ask_replay),
    post("/dead-letters/{name:name}/replay", replay),
    post("/dead-letters/{name:name}/purge", purge_letters),
    Route("/dead-letters/{name:name}/{partition:int}/{offset:int}", one),
]
