"""The routes.

POST /topics/T                                  v2 (also /topics/T/partitions/N)
POST /v3/clusters/C/topics/T/records            v3 (also below /kafka)
POST /events/T                                  CloudEvents
POST /hooks/NAME                                webhooks, answered when durable
GET  /topics/T/events?from=latest               server-sent events
GET  /health
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from millstream.admin.outgoing import Outgoing
from millstream.bridges.config import HookConfig, HttpConfig
from millstream.bridges.counts import Counts
from millstream.bridges.http import cloudevents, shapes
from millstream.bridges.http.conditions import conditional
from millstream.bridges.http.hooks import HOOK, ID, HookIds, Once
from millstream.bridges.http.limits import has_token, is_allowed, is_foreign, is_local
from millstream.bridges.http.shapes import BadRequest, Written
from millstream.bridges.http.signatures import VERIFIERS, BadSignature, Verified
from millstream.bridges.http.streaming import STARTS, TopicStream, parse_positions
from millstream.bridges.sending import Sender

IN_FLIGHT_MAX = 1_000  # records of one v3 request
KEEP_ALIVE_SECONDS = 15.0
BODY_SECONDS_MAX = 60.0
BODIES_BYTES_MAX = 256 * 1024 * 1024  # of all requests that are being read

OpenStream = Callable[[str, str, dict[int, int]], TopicStream]


@dataclass
class Gateway:
    """What the routes need."""

    config: HttpConfig
    sender: Sender
    open_stream: OpenStream
    counts: Counts
    hook_ids: Mapping[str, HookIds]
    exact_sender: Sender | None = None  # for hooks whose ids the broker checks
    once: dict[str, Once] = field(default_factory=dict)
    streams: int = 0
    bodies_bytes: int = 0
    is_stopping: bool = False

    async def body(self, request: Request) -> bytes:
        """The whole body, which counts until the request is answered. Raises `BadRequest` if it is
        too large, too slow, or one of too many."""
        share = request.state.share = Share(self)
        pieces, size = [], 0
        try:
            async with asyncio.timeout(BODY_SECONDS_MAX):
                async for piece in request.stream():
                    size += len(piece)
                    if size > self.config.body_bytes_max:
                        most = self.config.body_bytes_max
                        raise BadRequest(f"the body has more than {most} bytes", 413)
                    share.hold(size)
                    pieces.append(piece)
        except TimeoutError:
            raise BadRequest(f"the body took more than {BODY_SECONDS_MAX:g} s", 408) from None
        return b"".join(pieces)

    def send(
        self, topic: str, record: Outgoing, sender: Sender | None = None
    ) -> asyncio.Future[Written]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Written] = loop.create_future()

        def settle(written: Written) -> None:
            if not future.done():
                future.set_result(written)

        def done(written: Written) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, written)

        (sender or self.sender).send(topic, record, done)
        return future

    async def send_all(self, topic: str, records: list[Outgoing]) -> list[Written]:
        return list(await asyncio.gather(*(self.send(topic, it) for it in records)))


class Share:
    """What one request holds of the memory for all bodies."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._size = 0

    def hold(self, size: int) -> None:
        """Hold so many bytes from now on. Raises `BadRequest` if all together are too many."""
        self._gateway.bodies_bytes += size - self._size
        self._size = size
        if size and self._gateway.bodies_bytes > BODIES_BYTES_MAX:
            raise BadRequest("too many requests are being read", 429)


def lower(request: Request) -> dict[str, str]:
    return {name.lower(): value for name, value in request.headers.items()}


def problem(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error_code": status, "message": message}, status)


def create_app(gateway: Gateway) -> Starlette:
    def route(path: str, handler: Any, method: str) -> Route:
        async def guarded(request: Request) -> Response:
            response = await _answer(gateway, request, handler)
            gateway.counts.add("http_requests", route=path, status=str(response.status_code))
            return response

        return Route(path, guarded, methods=[method])

    v3 = "/v3/clusters/{cluster}/topics/{topic}/records"
    return Starlette(
        routes=[
            route("/health", health, "GET"),
            route("/topics/{topic}", produce_v2, "POST"),
            route("/topics/{topic}/partitions/{partition:int}", produce_v2, "POST"),
            route(v3, produce_v3, "POST"),
            route(f"/kafka{v3}", produce_v3, "POST"),
            route("/events/{topic}", receive_events, "POST"),
            route("/hooks/{name}", receive_hook, "POST"),
            route("/topics/{topic}/events", stream_topic, "GET"),
        ]
    )


async def _answer(gateway: Gateway, request: Request, handler: Any) -> Response:
    headers = lower(request)
    if is_foreign(headers, gateway.config.origins):
        return problem(403, "requests from pages of other sites are refused; see `origins`")
    is_public = handler in (health, receive_hook)  # a hook has its signature
    if not is_public and not has_token(headers, gateway.config.token):
        return problem(401, "a bearer token is needed")
    if not is_public and gateway.config.token is None and not is_local(headers):
        return problem(403, "without a token, only requests to localhost or 127.0.0.1 are answered")
    try:
        found: Response = await handler(gateway, request)
    except BadRequest as bad:
        found = problem(bad.status, str(bad))
    except ClientDisconnect:
        found = problem(400, "the client is gone")
    finally:
        if (share := getattr(request.state, "share", None)) is not None:
            share.hold(0)
    if origin := headers.get("origin"):
        found.headers["access-control-allow-origin"] = origin
        found.headers["vary"] = "origin"
    return found


async def health(gateway: Gateway, request: Request) -> Response:
    return PlainTextResponse("ok\n")


def writable(gateway: Gateway, request: Request) -> str:
    topic = str(request.path_params["topic"])
    if not is_allowed(topic, gateway.config.produce):
        raise BadRequest(f"topic {topic}: not among those that may be produced to", 403)
    return topic


async def produce_v2(gateway: Gateway, request: Request) -> Response:
    topic = writable(gateway, request)
    content_type = request.headers.get("content-type", "")
    shapes.embedded_format(content_type)  # before the body is read
    body = await gateway.body(request)
    records = shapes.parse_v2(body, content_type, request.path_params.get("partition"))
    written = await gateway.send_all(topic, records)
    return JSONResponse(shapes.answer_v2(written), media_type="application/vnd.kafka.v2+json")


async def produce_v3(gateway: Gateway, request: Request) -> Response:
    topic = writable(gateway, request)
    if "application/json" not in request.headers.get("content-type", ""):
        raise BadRequest("content type: use application/json", 415)
    answers = _answers_v3(gateway, request, topic)
    if "content-length" not in request.headers:
        lines = (json.dumps(it).encode() + b"\n" async for it in answers)
        return _Duplex(lines)
    if int(request.headers["content-length"]) > gateway.config.body_bytes_max:
        raise BadRequest(f"the body has more than {gateway.config.body_bytes_max} bytes", 413)
    found = [it async for it in answers]
    if len(found) == 1:
        code = found[0]["error_code"]
        return JSONResponse(found[0], code if code >= 400 else 200)
    text = "".join(json.dumps(it) + "\n" for it in found)
    return Response(text, media_type="application/json")


class _Duplex(Response):
    """An answer that begins while the request is still read. Starlette's own would read the request
    as well, to notice its end."""

    def __init__(self, lines: AsyncIterator[bytes]) -> None:
        super().__init__(media_type="application/json")
        del self.headers["content-length"]
        self._lines = lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        async for line in self._lines:
            await send({"type": "http.response.body", "body": line, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _answers_v3(
    gateway: Gateway, request: Request, topic: str
) -> AsyncIterator[dict[str, Any]]:
    """One answer for each object, in order. After an error in the body nothing more is read. What
    is not complete, or not durable, counts with the bodies of all requests."""
    cluster = str(request.path_params["cluster"])
    objects = shapes.ObjectStream(gateway.config.body_bytes_max)
    waiting: deque[tuple[asyncio.Future[Written], Outgoing]] = deque()
    share, bytes_waiting = Share(gateway), 0

    async def settle(keep: int) -> AsyncIterator[dict[str, Any]]:
        """Answers, until so many wait at most, and those that are ready."""
        nonlocal bytes_waiting
        while len(waiting) > keep or (waiting and waiting[0][0].done()):
            future, record = waiting.popleft()
            yield shapes.answer_v3(await future, cluster, topic, record)
            bytes_waiting -= _size_of(record)

    bad = None
    try:
        async for piece in request.stream():
            share.hold(objects.size + len(piece) + bytes_waiting)
            for found in objects.feed(piece):
                record = shapes.parse_v3(found)
                waiting.append((gateway.send(topic, record), record))
                bytes_waiting += _size_of(record)
            async for answer in settle(IN_FLIGHT_MAX):
                yield answer
            share.hold(objects.size + bytes_waiting)
        objects.finish()
    except BadRequest as error:
        bad = error
    finally:
        share.hold(0)
    async for answer in settle(0):
        yield answer
    if bad is not None:
        yield {"error_code": bad.status, "message": str(bad)}


def _size_of(record: Outgoing) -> int:
    return len(record.key or b"") + len(record.value or b"")


async def receive_events(gateway: Gateway, request: Request) -> Response:
    topic = writable(gateway, request)
    records = cloudevents.parse_request(lower(request), await gateway.body(request))
    return _acknowledged(await gateway.send_all(topic, records))


def _acknowledged(written: list[Written]) -> Response:
    """204 if all are durable: a sender that gets anything else sends again."""
    for one in written:
        if one.error is not None:
            return problem(one.status, one.error)
    return Response(status_code=204)


async def receive_hook(gateway: Gateway, request: Request) -> Response:
    name = str(request.path_params["name"])
    hook = gateway.config.hooks.get(name)
    if hook is None:
        return problem(404, f"no hook {name}")
    body, headers = await gateway.body(request), lower(request)
    try:
        verified = VERIFIERS[hook.signature](headers, body, list(hook.keys), time.time())
    except BadSignature as bad:
        gateway.counts.add("hooks_refused", hook=name, reason=bad.reason)
        return problem(401, str(bad))
    if name not in gateway.once:
        ids = gateway.hook_ids.get(name)
        gateway.once[name] = Once(ids.read if ids is not None else None)
    record, sender = _hook_record(name, hook, verified, headers, body), gateway.sender
    if hook.exact and gateway.exact_sender is not None:
        record, sender = conditional(record, name, verified.id), gateway.exact_sender
    written = await gateway.once[name].write(
        verified.id, lambda: gateway.send(hook.topic, record, sender)
    )
    if written is None:
        gateway.counts.add("hooks_repeated", hook=name)
        return Response(status_code=204)
    return _acknowledged([written])


def _hook_record(
    name: str, hook: HookConfig, verified: Verified, headers: dict[str, str], body: bytes
) -> Outgoing:
    names = dict.fromkeys(("content-type", *verified.kept, *hook.headers))
    found: dict[str, bytes | None] = {it: headers[it].encode() for it in names if it in headers}
    if verified.id:
        found[ID] = verified.id.encode()
    return Outgoing(value=body, headers=[*found.items(), (HOOK, name.encode())])


async def stream_topic(gateway: Gateway, request: Request) -> Response:
    topic, start = str(request.path_params["topic"]), request.query_params.get("from", "latest")
    if not is_allowed(topic, gateway.config.read):
        raise BadRequest(f"topic {topic}: not among those that may be read", 403)
    if start not in STARTS:
        raise BadRequest(f"from={start[:40]!r}: use earliest or latest", 400)
    last = request.headers.get("last-event-id", "")
    resumed = parse_positions(last) if last else {}
    if gateway.streams >= gateway.config.streams_max:
        raise BadRequest(f"{gateway.streams} streams are open, which is the maximum", 503)
    gateway.streams += 1
    try:
        stream = await run_in_threadpool(gateway.open_stream, topic, start, resumed)
    except BaseException:
        gateway.streams -= 1
        raise
    return StreamingResponse(
        _pieces(gateway, stream, topic),
        media_type="text/event-stream",
        headers={"cache-control": "no-store", "x-accel-buffering": "no"},
    )


async def _pieces(gateway: Gateway, stream: TopicStream, topic: str) -> AsyncIterator[bytes]:
    """Reads only when the reader has taken what it got before."""
    try:
        yield b": open\n\n"
        quiet_since = time.monotonic()
        while not gateway.is_stopping:
            found = await run_in_threadpool(stream.read, 0.5)
            if found:
                quiet_since = time.monotonic()
                gateway.counts.add("records_out", len(found), topic=topic)
                yield b"".join(found)
            elif time.monotonic() - quiet_since > KEEP_ALIVE_SECONDS:
                quiet_since = time.monotonic()
                yield b": quiet\n\n"
    finally:
        gateway.streams -= 1
        await asyncio.shield(run_in_threadpool(stream.close))
