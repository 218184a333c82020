"""Resets of groups and of share groups: a preview of the offsets, then the reset itself.

A group has committed offsets, a share group has a start in each partition. `Resettable` says how
they are read and written; the rest is the same.

    ROUTES = [..., *resets.routes()]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from millstream.admin import reset
from millstream.admin.errors import InvalidArgument, OperationFailed
from millstream.admin.groups import GroupDescription
from millstream.admin.reset import Move, Target
from millstream.client.cluster import Cluster
from millstream.console.actions import Form, act, command, post
from millstream.console.answers import page
from millstream.console.paths import link
from millstream.console.zones import in_full
from millstream.models import dataclass
from millstream.partitions import TopicPartition

TARGETS = (
    ("earliest", "the beginning"),
    ("latest", "the end"),
    ("datetime", "a point in time"),
    ("duration", "a time ago"),
    ("offset", "an offset"),
    ("shift", "a number of records from here"),
    ("current", "where it is, moved into range"),
)


@dataclass(frozen=True)
class ResetPage:
    """A reset: what is asked for, and what it would do."""

    group: str
    members: int
    topics: tuple[str, ...]
    target: str
    value: str
    scope: tuple[str, ...]
    moves: tuple[Move, ...] = ()
    reread: int = 0
    skipped: int = 0
    problem: str = ""
    command: str = ""
    targets: tuple[tuple[str, str], ...] = field(default=TARGETS)
    path: str = ""  # of the group's page
    action: str = ""
    now_title: str = ""
    submit: str = ""


@dataclass(frozen=True)
class Resettable:
    """A kind of groups: where its pages are, and how its offsets are read and written."""

    pages: str  # the first part of their paths
    describe: Callable[[Cluster, str], GroupDescription]
    offsets: Callable[[Cluster, str], dict[TopicPartition, int]]
    write: Callable[[Cluster, str, Mapping[TopicPartition, int]], object]
    now_title: str
    submit: str
    done: Callable[[str, int], str]  # of a group, and the number of its partitions

    def routes(self) -> list[BaseRoute]:
        path = f"/{self.pages}/{{name:name}}/reset"
        return [Route(path, self.ask), post(path, self.apply)]

    async def ask(self, request: Request) -> Response:
        group, query = request.path_params["name"], request.query_params
        kind = query.get("target", "")
        value = value_of(kind, query)
        scope = [it for it in query.getlist("topic") if it]
        return await page(
            request,
            "group_reset.html",
            lambda cluster: self.load(cluster, group, kind, value, scope, request),
        )

    def load(
        self,
        cluster: Cluster,
        group: str,
        kind: str,
        value: str,
        scope: Sequence[str],
        request: Request,
    ) -> ResetPage:
        description = self.describe(cluster, group)
        offsets = self.offsets(cluster, group)
        assigned = {topic for topic, _ in description.readers}
        asked = ResetPage(
            group,
            len(description.members),
            tuple(sorted({topic for topic, _ in offsets} | assigned)),
            kind,
            value,
            tuple(scope),
            path=link(self.pages, group),
            action=link(self.pages, group, "reset"),
            now_title=self.now_title,
            submit=self.submit,
        )
        return preview(cluster, asked, offsets, request) if kind else asked

    def perform(self, cluster: Cluster, group: str, target: Target, scope: Sequence[str]) -> int:
        offsets = self.offsets(cluster, group)
        places = reset.parse_scope(cluster, scope, not scope, offsets)
        moves = reset.plan(cluster, offsets, places, target, now())
        self.write(cluster, group, {(it.topic, it.partition): it.target for it in moves})
        return len(moves)

    async def apply(self, request: Request, form: Form) -> Response:
        group = request.path_params["name"]
        kind = form.get("target")
        target = parse_target(kind, value_of(kind, form))
        scope = [it for it in form.all("topic") if it]
        return await act(
            request,
            self.perform,
            group,
            target,
            scope,
            done=lambda count: self.done(group, count),
            command=command(request, *reset_arguments(group, scope, target)),
            back=link(self.pages, group),
        )


def preview(
    cluster: Cluster, asked: ResetPage, committed: dict[tuple[str, int], int], request: Request
) -> ResetPage:
    """With what the reset would do, or why it cannot be done."""
    try:
        target = parse_target(asked.target, asked.value)
        places = reset.parse_scope(cluster, asked.scope, not asked.scope, committed)
        moves = tuple(reset.plan(cluster, committed, places, target, now()))
    except OperationFailed as error:
        return replace(asked, problem=str(error))
    differences = [it.difference for it in moves if it.difference is not None]
    return replace(
        asked,
        moves=moves,
        reread=-sum(it for it in differences if it < 0),
        skipped=sum(it for it in differences if it > 0),
        command=command(request, *reset_arguments(asked.group, asked.scope, target)),
    )


def now() -> datetime:
    """With the time zone of the console; points in time have one (`value_of`)."""
    return datetime.now(UTC).astimezone()


def value_of(kind: str, fields: Mapping[str, str] | Form) -> str:
    """What is typed beside the target; a point in time with its zone."""
    value = (fields.get("value") or "").strip()
    if kind != "datetime" or not value:
        return value
    with suppress(InvalidArgument):  # said where it is used
        return in_full(value, fields.get("zone") or "", now())
    return value


def parse_target(kind: str, value: str) -> Target:
    """What the form asks for. Raises `InvalidArgument`."""
    if kind == "earliest":
        return Target(earliest=True)
    if kind == "latest":
        return Target(latest=True)
    if kind == "current":
        return Target(current=True)
    if not value:
        raise InvalidArgument("say where to: the value is missing")
    if kind == "datetime":
        return Target(moment=value)
    if kind == "duration":
        return Target(span_ago=value)
    if kind in ("offset", "shift"):
        try:
            number = int(value)
        except ValueError:
            raise InvalidArgument(f"{value!r} is not a whole number") from None
        if kind == "shift":
            return Target(shift=number)
        if number < 0:
            raise InvalidArgument("an offset is not negative")
        return Target(offset=number)
    raise InvalidArgument(f"unknown target {kind!r}")


def reset_arguments(group: str, scope: Sequence[str], target: Target) -> list[str]:
    """The arguments of the same reset on the command line."""
    where = [part for it in scope for part in ("--topic", it)] if scope else ["--all-topics"]
    return ["group", "reset", group, *where, *target.options(), "--execute"]
