"""`/archive`: what brokers have archived of each partition, how far that is behind the log, and
what keeps it from going on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from millstream.admin.archive import ArchivedPartition, archive_path, archive_state
from millstream.client.cluster import Cluster
from millstream.console.actions import command, command_of
from millstream.console.answers import page
from millstream.console.lists import Listed, Wanted, listed
from millstream.models import dataclass

TONES = {"failing": "bad", "behind": "warn", "loading": "info", "up to date": "good"}
LIVE_SECONDS = 5.0


@dataclass(frozen=True)
class ArchivePage:
    """The model. `size_bytes` and the other sums are of all partitions, not only of those shown."""

    partitions: Listed[ArchivedPartition]
    topics: int
    files: int
    size_bytes: int
    segment_bytes: int
    lag_bytes: int
    failing: int
    path: str | None  # where it is; None if that is not known
    is_known: bool  # whether the brokers of this cluster tell of an archive
    problems: list[str]
    tones: dict[str, str] = field(default_factory=lambda: dict(TONES))
    commands: dict[str, str] = field(default_factory=dict)


def load(cluster: Cluster, wanted: Wanted) -> ArchivePage:
    state = archive_state(cluster)
    rows = state.partitions
    return ArchivePage(
        partitions=listed_partitions(rows, wanted),
        topics=len({it.topic for it in rows}),
        files=sum(it.files or 0 for it in rows),
        size_bytes=sum(it.size_bytes or 0 for it in rows),
        segment_bytes=sum(it.segment_bytes or 0 for it in rows),
        lag_bytes=sum(it.lag_bytes for it in rows),
        failing=sum(it.problem is not None for it in rows),
        path=archive_path(cluster) if state.is_known else None,
        is_known=state.is_known,
        problems=state.problems,
    )


def listed_partitions(
    rows: Sequence[ArchivedPartition], wanted: Wanted
) -> Listed[ArchivedPartition]:
    return listed(
        rows,
        wanted,
        text=lambda it: f"{it.topic} {it.state} {it.problem or ''}",
        keys={
            "topic": lambda it: (it.topic, it.partition),
            "state": lambda it: (list(TONES).index(it.state), it.topic, it.partition),
            "records": lambda it: it.records,
            "size": lambda it: it.size_bytes,
            "lag": lambda it: it.lag_bytes,
            "archived": lambda it: it.archived_ms,
        },
        default="topic",
    )


async def show(request: Request) -> Response:
    wanted = Wanted.of(request.query_params)

    def model(cluster: Cluster) -> ArchivePage:
        found = load(cluster, wanted)
        path = found.path or "PATH"
        commands = {
            "status": command(request, "archive", "status"),
            "verify": command_of("archive", "verify", path),
            "restore": command_of(
                "archive", "restore", path, "--topic", "TOPIC", "--directory", "restored"
            ),
            "path": command_of("serve", "--set", "millstream.archive.path=/var/archive"),
            "enable": command(
                request, "topic", "alter", "TOPIC", "--config", "remote.storage.enable=true"
            ),
        }
        return replace(found, commands=commands)

    return await page(
        request, "archive.html", model, live={"now": LIVE_SECONDS, "rows": LIVE_SECONDS}
    )


ROUTES = [Route("/archive", show)]
