"""Producing: one record, typed or copied from another, or many, pasted or from a file."""

from __future__ import annotations

import shlex

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from millstream.admin.outgoing import (
    ANY_PARTITION,
    ENCODERS,
    Encoder,
    Outgoing,
    parse_headers,
    parse_lines,
    send,
)
from millstream.admin.paging import decode_positions
from millstream.admin.reading import Reader, ReadRecord
from millstream.client.cluster import Cluster
from millstream.client.producing import WrittenRange
from millstream.console.actions import Done, Form, Refused, command, finish, post
from millstream.console.answers import page
from millstream.console.paths import link
from millstream.console.record_views import now_ms
from millstream.console.sessions import in_cluster
from millstream.models import dataclass

RECORDS_MAX = 100_000
COPIED_BYTES_MAX = 1024 * 1024


@dataclass(frozen=True)
class Draft:
    """The fields of the form for one record."""

    key: str = ""
    key_format: str = "text"
    value: str = ""
    value_format: str = "text"
    headers: str = ""
    is_tombstone: bool = False
    note: str = ""


@dataclass(frozen=True)
class Produce:
    """The model of the page."""

    name: str
    partitions: int
    draft: Draft


async def show(request: Request) -> Response:
    topic = request.path_params["name"]
    copied = request.query_params.get("copy", "")
    place = next(iter(decode_positions(copied).items())) if copied else None

    def load(cluster: Cluster) -> Produce:
        found = cluster.retrying(lambda: cluster.topic(topic, seconds_old_max=1.0))
        draft = Draft()
        if place is not None:
            record = Reader(cluster, topic, kept_bytes=None).one(*place)
            draft = Draft(note="That record is gone.") if record is None else draft_of(record)
        return Produce(topic, len(found.partitions), draft)

    return await page(request, "messages_produce.html", load)


def draft_of(record: ReadRecord) -> Draft:
    """A record as the form has it: what is no text as hex."""
    if record.value_bytes > COPIED_BYTES_MAX:
        return Draft(note="That value is too large for a form; copy it on the command line.")
    key, key_format = _typed(record.key)
    value, value_format = _typed(record.value, is_multiline=True)
    lines, is_exact = [], True
    for header in record.headers:
        name, is_text = header.name, header.value is not None
        text = (header.value or b"").decode("utf-8", "replace")
        is_plain = text.encode() == (header.value or b"") and is_text and text == text.strip()
        is_exact = is_exact and is_plain and not {*":=\r\n"} & {*name} and "\n" not in text
        lines.append(f"{name}: {text}")
    note = "" if is_exact else "Some headers are no text of one line: check them."
    headers = "\n".join(lines).encode("utf-8", "replace").decode()
    return Draft(key, key_format, value, value_format, headers, record.value is None, note)


def _typed(data: bytes | None, *, is_multiline: bool = False) -> tuple[str, str]:
    """Text that survives a form, or hex: forms turn all line ends into one kind."""
    try:
        text = (data or b"").decode()
    except UnicodeDecodeError:
        return (data or b"").hex(), "hex"
    is_safe = "\r" not in text and (is_multiline or "\n" not in text)
    return (text, "text") if is_safe else (text.encode().hex(), "hex")


async def produce_one(request: Request, form: Form) -> Response:
    topic = request.path_params["name"]
    key = form.text("key")
    encode_key, encode_value = _encoder(form, "key_format"), _encoder(form, "value_format")
    is_tombstone = form.get("tombstone") != ""
    if is_tombstone and not key:
        raise Refused("a tombstone deletes the records with its key: write a key")
    record = Outgoing(
        None if is_tombstone else encode_value(form.text("value").replace("\r\n", "\n")),
        encode_key(key) if key else None,
        parse_headers(form.text("headers")),
        _partition(form),
    )
    (written,) = await in_cluster(request, _send, topic, [record])
    done = Done(
        f"Written to partition {written.partition} at offset {written.first_offset}.",
        _command_for_one(request, topic, form, record),
    )
    place = (str(written.partition), str(written.first_offset))
    return finish(request, done, link("topics", topic, "messages", *place))


async def produce_many(request: Request, form: Form) -> Response:
    topic = request.path_params["name"]
    separator = form.text("separator") or None
    is_envelope = form.get("lines") == "envelope"
    records = parse_lines(
        form.text("records").splitlines(),
        Outgoing(None, None, parse_headers(form.text("headers")), _partition(form)),
        _encoder(form, "value_format"),
        key_separator=separator if form.get("lines") == "keys" else None,
        envelope=is_envelope,
        records_max=RECORDS_MAX,
    )
    if not records:
        raise Refused("there are no records: write or paste one per line, or choose a file")
    written = await in_cluster(request, _send, topic, records)
    places = ", ".join(f"{it.partition} ({it.record_count})" for it in written[:20])
    count = sum(it.record_count for it in written)
    done = Done(
        f"{count} {'record' if count == 1 else 'records'} written to "
        f"{'partition' if len(written) == 1 else 'partitions'} {places}.",
        _command_for_many(request, topic, form, separator),
    )
    return finish(request, done, link("topics", topic, "messages"))


def _send(cluster: Cluster, topic: str, records: list[Outgoing]) -> list[WrittenRange]:
    return send(cluster, topic, records, now_ms=int(now_ms()))


def _encoder(form: Form, name: str) -> Encoder:
    chosen = form.get(name, "text")
    if chosen not in ENCODERS:
        raise Refused(f"{chosen!r} is not a format; choose one of {', '.join(ENCODERS)}")
    return ENCODERS[chosen]


def _partition(form: Form) -> int:
    partition = form.integer("partition", "the partition", ANY_PARTITION)
    if partition != ANY_PARTITION and not 0 <= partition < 2**31:
        raise Refused(f"there is no partition {partition}")
    return partition


def _command_for_one(request: Request, topic: str, form: Form, record: Outgoing) -> str:
    if form.get("key_format", "text") != "text" and record.key is not None:
        return ""  # keys are text on the command line
    options = _options(form, record)
    if record.key is not None:
        options += ["--key", form.text("key")]
    for name, value in record.headers:
        options += ["--header", f"{name}={(value or b'').decode('utf-8', 'replace')}"]
    if record.value is None:
        return command(request, "produce", topic, *options, "--tombstone")
    text = form.text("value").replace("\r\n", "\n")
    needs_end = text.startswith("-") and not topic.startswith("-")  # else it ends behind `--`
    last = ["--", text] if needs_end else [text]
    return f"{command(request, 'produce', topic, *options)} {shlex.join(last)}"


def _options(form: Form, record: Outgoing) -> list[str]:
    options = []
    if form.get("value_format", "text") != "text" and record.value is not None:
        options += ["--format", form.get("value_format")]
    if record.partition != ANY_PARTITION:
        options += ["--partition", str(record.partition)]
    return options


def _command_for_many(request: Request, topic: str, form: Form, separator: str | None) -> str:
    options = ["--file", "records.txt"]
    if form.get("lines") == "envelope":
        options.append("--envelope")
    if form.get("lines") == "keys" and separator is not None:
        options += ["--key-separator", separator]
    for name, value in parse_headers(form.text("headers")):
        options += ["--header", f"{name}={(value or b'').decode('utf-8', 'replace')}"]
    options += _options(form, Outgoing(b"", partition=_partition(form)))
    return command(request, "produce", topic, *options)


PATH = "/topics/{name:name}/messages/produce"
ROUTES = [Route(PATH, show), post(PATH + "/one", produce_one), post(PATH + "/many", produce_many)]
