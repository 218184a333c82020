"""`/excision`: records that were removed from history, with their receipts; what brokers are still
removing; and the command that removes more, with a preview.

What is to be removed is often personal: the selector of a preview is sent in the body of a request,
is never part of an address, and receipts do not contain it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import field
from typing import Any
from weakref import WeakKeyDictionary

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from millstream.client.cluster import Cluster
from millstream.console.actions import Form, Refused, command, post
from millstream.console.answers import page, render, wants_json
from millstream.console.lists import Listed, Wanted, listed
from millstream.console.sessions import Session, in_cluster, session_of
from millstream.excision.documents import KEY, NOT_SEARCHED, WHERE, Receipt, Selector, TopicPlan
from millstream.excision.history import EXCISIONS, RECEIPTS
from millstream.excision.ledger import Excision, Excisions, Ledger
from millstream.excision.selection import Access, find_topic
from millstream.models import dataclass

LIVE_SECONDS = 4.0
PREVIEW_SECONDS = 10.0
OFFSETS_CHARACTERS_MAX = 80
REASON_CHARACTERS_MAX = 500

_ledgers: WeakKeyDictionary[Session, Ledger] = WeakKeyDictionary()
_previewing = threading.Lock()  # one at a time: it reads a topic


@dataclass(frozen=True)
class Running:
    """A job without a receipt."""

    id: str
    topic: str
    records: int
    requested_ms: int
    requested_by: str
    reason: str
    done: int
    replicas: int
    waiting: list[str]  # the first replicas that have not reported
    resume: str


@dataclass(frozen=True)
class ReceiptRow:
    number: int
    topic: str
    topics: int
    records: int
    completed_ms: int
    requested_by: str
    reason: str


@dataclass(frozen=True)
class ExcisionPage:
    """The model of the list."""

    running: list[Running]
    receipts: Listed[ReceiptRow]
    removed: int
    problems: list[str]
    topics: tuple[str, str] = (EXCISIONS, RECEIPTS)
    commands: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PlaceRow:
    topic: str
    role: str
    partition: int
    records: int
    offsets: str
    searched: str


@dataclass(frozen=True)
class ReplicaRow:
    """A report of a broker."""

    kind: str
    topic: str
    partition: Any
    broker: Any
    time_ms: int | None
    removed: int | None
    segments: int
    bytes_before: int | None
    bytes_after: int | None


@dataclass(frozen=True)
class DerivedRow:
    """What was done to a sink or a pipeline that has rows of the records."""

    kind: str
    name: str
    how: str
    state: str
    rows: list[str]  # of each table, before and after
    left: str


@dataclass(frozen=True)
class ReceiptPage:
    """The model of one receipt. `problems` are those of the whole chain."""

    receipt: Receipt
    records: int
    places: list[PlaceRow]
    replicas: list[ReplicaRow]
    derived: list[DerivedRow]
    problems: list[str]
    others: int  # receipts in the chain
    commands: dict[str, str]


@dataclass(frozen=True)
class Preview:
    """What an excision would remove. `plan` is None if looking for it took too long."""

    topic: str
    selector: str
    places: list[PlaceRow] | None
    records: int
    searched: int
    total: int
    dry_run: str
    command: str


def ledger_of(session: Session) -> Ledger:
    return _ledgers.setdefault(session, Ledger())


def load(request: Request, found: Excisions, wanted: Wanted) -> ExcisionPage:
    rows = [_receipt_row(it) for it in found.receipts]
    return ExcisionPage(
        [_running(request, it) for it in found.excisions if not it.is_complete],
        listed(
            rows,
            wanted,
            text=lambda it: f"{it.number} {it.topic} {it.requested_by} {it.reason}",
            keys={
                "number": lambda it: it.number,
                "topic": lambda it: it.topic,
                "records": lambda it: it.records,
                "completed": lambda it: it.completed_ms,
            },
            default="-number",
        ),
        sum(it.records for it in rows),
        found.problems,
        commands={"list": command(request, "excise", "list")},
    )


def _running(request: Request, excision: Excision) -> Running:
    job = excision.job
    waiting = [it for it in excision.replicas if not it.is_done]
    return Running(
        job.id,
        job.topics[0].topic,
        job.records,
        job.requested_ms,
        job.requested_by,
        job.reason,
        excision.done,
        len(excision.replicas),
        [f"{it.topic}-{it.partition} on broker {it.broker}" for it in waiting[:5]],
        command(request, "excise", "resume", job.id),
    )


def _receipt_row(receipt: Receipt) -> ReceiptRow:
    job = receipt.job
    return ReceiptRow(
        receipt.number,
        job.topics[0].topic,
        len(job.topics),
        job.records,
        receipt.completed_ms,
        job.requested_by,
        job.reason,
    )


async def show(request: Request) -> Response:
    wanted, ledger = Wanted.of(request.query_params), ledger_of(session_of(request))

    def model(cluster: Cluster) -> ExcisionPage:
        found = ledger.read(cluster, seconds_old_max=LIVE_SECONDS / 2)
        return load(request, found, wanted)

    return await page(
        request, "excision.html", model, live={"now": LIVE_SECONDS, "rows": LIVE_SECONDS}
    )


# One receipt


def find_receipt(found: Excisions, number: int) -> Receipt:
    for it in found.receipts:
        if it.number == number:
            return it
    raise HTTPException(404, f"there is no receipt {number}; there are {len(found.receipts)}")


def place_rows(topics: Sequence[TopicPlan]) -> list[PlaceRow]:
    return [
        PlaceRow(
            plan.topic,
            plan.role,
            it.partition,
            it.records,
            _offsets(it.offsets),
            f"{it.searched_from}–{it.searched_to - 1}",
        )
        for plan in topics
        for it in plan.places
    ]


def _offsets(ranges: str) -> str:
    """For people; receipts have all of them."""
    text = ranges[: OFFSETS_CHARACTERS_MAX + 1].replace("+", ", ")
    return text if len(ranges) <= OFFSETS_CHARACTERS_MAX else f"{text.rpartition(', ')[0]}, …"


def replica_rows(receipt: Receipt) -> list[ReplicaRow]:
    """The reports, as far as they are what brokers write."""
    rows = []
    for it in receipt.replicas:
        segments = [each for each in _list(it.get("segments")) if isinstance(each, dict)]
        before = [_whole(each.get("bytesBefore")) or 0 for each in segments]
        after = [_whole(each.get("bytesAfter")) or 0 for each in segments]
        rows.append(
            ReplicaRow(
                str(it.get("kind", "")),
                str(it.get("topic", "")),
                it.get("partition"),
                it.get("broker"),
                _whole(it.get("time")),
                _whole(it.get("removedRecords")),
                len(segments),
                sum(before) if segments else None,
                sum(after) if segments else None,
            )
        )
    return rows


def derived_rows(reports: Sequence[Any]) -> list[DerivedRow]:
    return [
        DerivedRow(
            kind=str(it.get("kind", "")),
            name=str(it.get("name", "")),
            how=str(it.get("how", "")),
            state=str(it.get("state", "")),
            rows=[
                *_rows(it.get("rows_before"), it.get("rows_after")),
                *_not_searched(it.get("selected_by")),
            ],
            left="" if it.get("left") in (None, 0, "", [], {}) else str(it["left"]),
        )
        for it in reports
        if isinstance(it, dict)
    ]


def _rows(before: object, after: object) -> list[str]:
    if not isinstance(before, dict) or not isinstance(after, dict):
        return []
    return [f"{table}: {count} → {after.get(table, '?')}" for table, count in before.items()]


def _not_searched(selected_by: object) -> list[str]:
    """Tables whose rows could not be searched for those of the records, and why."""
    if not isinstance(selected_by, dict):
        return []
    return [f"{table}: {how}" for table, how in selected_by.items() if NOT_SEARCHED in str(how)]


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and 0 <= value < 2**63 else None


async def show_receipt(request: Request) -> Response:
    number: int = request.path_params["number"]
    ledger = ledger_of(session_of(request))

    def model(cluster: Cluster) -> ReceiptPage:
        found = ledger.read(cluster, seconds_old_max=LIVE_SECONDS / 2)
        receipt = find_receipt(found, number)
        return ReceiptPage(
            receipt,
            receipt.job.records,
            place_rows(receipt.job.topics),
            replica_rows(receipt),
            derived_rows(getattr(receipt, "derived", ())),
            found.problems,
            len(found.receipts),
            {
                "verify": command(request, "excise", "verify", str(number)),
                "search": command(request, "excise", "verify", str(number), "--key", "KEY"),
            },
        )

    return await page(request, "excision_receipt.html", model)


async def download(request: Request) -> Response:
    """The receipt as a file, as `millstream excise --receipt` writes it."""
    number: int = request.path_params["number"]
    ledger = ledger_of(session_of(request))
    receipt = await in_cluster(request, lambda it: find_receipt(ledger.read(it), number))
    return Response(
        receipt.to_json() + b"\n",
        media_type="application/json",
        headers={
            "Content-Disposition": f'attachment; filename="receipt-{number}.json"',
            "Cache-Control": "no-store",
        },
    )


# Preview


class TookTooLong(Exception):
    """A topic is too large to be searched while somebody waits for a page."""

    def __init__(self, searched: int, total: int) -> None:
        super().__init__(f"{searched} of {total} records")
        self.searched = searched
        self.total = total


async def preview(request: Request, form: Form) -> Response:
    topic = form.need("topic", "The topic")
    kind = form.get("by", KEY)
    text = form.text("selector")
    if kind not in (KEY, WHERE):
        raise Refused(f"records are chosen by key or where, not by {kind[:40]!r}")
    if not text.strip():
        raise Refused("The key or predicate is missing")
    session = session_of(request)
    selector = Selector(kind, text.encode())
    access = Access(session.bootstrap_servers, session.client_settings)
    found, searched, total = await in_cluster(request, _look, topic, selector, access)
    arguments = ["excise", "--topic", topic, f"--{kind}", text]
    reason = form.get("reason")[:REASON_CHARACTERS_MAX]
    model = Preview(
        topic,
        selector.describe(),
        None if found is None else place_rows([found]),
        0 if found is None else found.records,
        searched,
        total,
        command(request, *arguments, "--dry-run"),
        command(request, *arguments, *(["--reason", reason] if reason else [])),
    )
    if request.headers.get("hx-request") and not wants_json(request):
        renderer = request.app.state.renderer
        return HTMLResponse(renderer.block("excision_preview.html", "plan", model, {}))
    return render(request, "excision_preview.html", model)


def _look(
    cluster: Cluster, topic: str, selector: Selector, access: Access
) -> tuple[TopicPlan | None, int, int]:
    """The plan, or None, and how many records were searched of how many."""
    deadline = time.monotonic() + PREVIEW_SECONDS
    read = [0, 0]

    def advance(done: int, total: int) -> None:
        read[:] = done, total
        if time.monotonic() > deadline:
            raise TookTooLong(done, total)

    if not _previewing.acquire(blocking=False):
        raise Refused("another preview is being made; try again in a few seconds")
    try:
        plan = find_topic(cluster, topic, selector, access=access, on_progress=advance)
    except TookTooLong as error:
        return None, error.searched, error.total
    finally:
        _previewing.release()
    return plan, read[0], read[1]


ROUTES = [
    Route("/excision", show),
    Route("/excision/receipts/{number:int}", show_receipt),
    Route("/excision/receipts/{number:int}/file", download),
    post("/excision/preview", preview),
]
