"""Following what pipelines publish, and asking them to stop or restart; see `pipeline_records`."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

from millstream.admin.following import BoardFollower, create_missing, write_records
from millstream.admin.pipeline_board import Board, Shown
from millstream.admin.pipeline_records import (
    ABOUT,
    COMMAND_SETTINGS,
    COMMANDS_TOPIC,
    STATUS,
    STATUS_SETTINGS,
    STATUS_TOPIC,
    Action,
    Command,
    encode,
)
from millstream.client.cluster import Cluster
from millstream.errors import ConfigError

POLL_SECONDS = 0.5


class PipelineFollower(BoardFollower[Board]):
    """The pipelines of a cluster."""

    def __init__(self, clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        super().__init__(STATUS_TOPIC, Board, clock_ms)


def create_status_topics(cluster: Cluster) -> None:
    """Create the topics that are missing; raises `ApiError` without the right to do so."""
    create_missing(cluster, {STATUS_TOPIC: STATUS_SETTINGS, COMMANDS_TOPIC: COMMAND_SETTINGS})


def read_pipelines(cluster: Cluster, now_ms: int) -> list[Shown]:
    """All pipelines that are known, at this moment."""
    return PipelineFollower(lambda: now_ms).update(cluster).pipelines(now_ms)


def find_pipeline(pipelines: list[Shown], identity: str) -> Shown:
    """Raises `ConfigError` if nobody has heard of it."""
    for it in pipelines:
        if it.identity == identity:
            return it
    known = ", ".join(it.identity for it in pipelines) or "none"
    raise ConfigError(f"there is no pipeline {identity} (known: {known})")


def send_command(
    cluster: Cluster,
    shown: Shown,
    action: Action,
    *,
    by: str = "",
    versions: tuple[str, str] | None = None,
    time_column: str | None = None,
) -> Command:
    """Ask the run to do something; raises `ConfigError` if it would not."""
    if not shown.does(action):
        raise ConfigError(why_not(shown, action))
    command = Command(
        uuid.uuid4().hex,
        shown.identity,
        shown.status.run,
        action,
        by,
        versions or (),
        time_column,
    )
    write_records(cluster, COMMANDS_TOPIC, [(shown.identity, encode(command))])
    return command


def why_not(shown: Shown, action: Action) -> str:
    """Why the pipeline cannot be asked to do this."""
    name, status = shown.identity, shown.status
    if shown.is_lost:
        return (
            f"{name} has given no sign of life for {shown.age_ms / 1000:.0f} s: its process was "
            "killed, or cannot reach the cluster. Start it again where it runs"
        )
    if status.state in ("done", "failed"):
        return f"{name} is {status.state}, and its process has ended: start it again"
    if action == "stop" and status.state == "stopped":
        return f"{name} is stopped already"
    if not shown.about.does:
        return (
            f"{name} takes no commands: its user lacks Read on the topic {COMMANDS_TOPIC}, or its "
            "process has ended"
        )
    return (
        f"{name} was started by a program, not by `millstream run`: "
        f"{', '.join(shown.about.does)} is all that it can be asked for"
    )


def forget_pipeline(cluster: Cluster, shown: Shown) -> None:
    """Remove one that has ended from what is shown; raises `ConfigError` if it runs."""
    if shown.is_running:
        raise ConfigError(f"{shown.identity} is running: stop it first")
    write_records(
        cluster,
        STATUS_TOPIC,
        [(f"{ABOUT}{shown.identity}", None), (f"{STATUS}{shown.identity}", None)],
    )


def wait_for(
    cluster: Cluster, identity: str, is_so: Callable[[Shown], bool], seconds: float
) -> Shown | None:
    """The pipeline when it is so; None if that takes too long."""
    follower = PipelineFollower()
    deadline = time.monotonic() + seconds
    while True:
        now_ms = time.time_ns() // 1_000_000
        found = find_pipeline(follower.update(cluster).pipelines(now_ms), identity)
        if is_so(found):
            return found
        if time.monotonic() > deadline:
            return None
        time.sleep(POLL_SECONDS)
