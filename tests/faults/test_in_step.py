"""Whatever is killed at whatever point, every derived system ends equal to the database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.faults.dying import Kill
from tests.faults.step_scene import LAKES, SINKS, Plan, Scene, random_plan
from tests.peers.cache import PeerMissing
from tests.peers.opensearch import OpenSearchServer
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.postgres import PostgresServer, start_postgres
from tests.peers.redis import RedisServer, running_redis


@pytest.fixture(scope="module")
def database() -> Iterator[PostgresServer]:
    try:
        server = start_postgres("fsync=off", "wal_level=logical", "max_replication_slots=50")
    except PeerMissing as missing:
        pytest.skip(str(missing))
    yield server
    server.remove()


@pytest.fixture(scope="module")
def cache() -> Iterator[RedisServer]:
    try:
        yield from running_redis()
    except PeerMissing as missing:
        pytest.skip(str(missing))


# Each system is killed once at least, and each kind of process continues once after another has
# taken over.
SHORT: Plan = {
    "broker": [Kill("after prepare", 6)],
    "capture": [Kill("before commit", 3, "zombie"), Kill("before commit", 3, "database")],
    "table": [Kill("after rows", 2)],
    "index": [Kill("before apply", 2, "zombie")],
    "cache": [Kill("after apply", 2, "cache")],
}
# Mistakes of one role, and kills that bring them to light: while changes are streamed, since the
# rows of a snapshot may be deleted soon.
MISTAKES = {
    "no fence": ("index", [Kill("before apply", 8, "zombie")] * 2),
    "lake without fence": ("lake", [Kill("before apply", 8, "zombie")] * 2),
    "position by itself": ("capture", [Kill("before commit", 20)] * 2),
    "position first": ("index", [Kill("before rows", 25)] * 2),
}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_derived_systems_equal_the_database_after_crashes(
    tmp_path: Path, database: PostgresServer, cache: RedisServer
) -> None:
    patience = 3 * PATIENCE_SECONDS  # a dozen processes are started
    scene = Scene(tmp_path, database, cache, SHORT, seed=1, patience_seconds=patience)
    scene.run()
    assert not scene.differences(), scene.struck


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(2, 12))
def test_derived_systems_equal_the_database_after_random_crashes(
    tmp_path: Path, database: PostgresServer, cache: RedisServer, seed: int
) -> None:
    plan = random_plan(seed, 6)
    scene = Scene(tmp_path, database, cache, plan, seed, patience_seconds=4 * PATIENCE_SECONDS)
    scene.run()
    assert not scene.differences(), scene.struck


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(20, 24))
def test_lakes_equal_the_database_after_random_crashes(
    tmp_path: Path, database: PostgresServer, seed: int
) -> None:
    run_with(tmp_path, database, LAKES, seed)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(40, 43))
def test_tables_in_a_file_equal_the_database_after_random_crashes(
    tmp_path: Path, database: PostgresServer, seed: int
) -> None:
    run_with(tmp_path, database, ["file"], seed)


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(30, 33))
def test_search_server_equals_the_database_after_random_crashes(
    tmp_path: Path, database: PostgresServer, opensearch: OpenSearchServer, seed: int
) -> None:
    run_with(tmp_path, database, ["search"], seed, opensearch)


def run_with(
    directory: Path,
    database: PostgresServer,
    sinks: Sequence[str],
    seed: int,
    search: OpenSearchServer | None = None,
) -> None:
    plan = random_plan(seed, 6, sinks)
    patience = 4 * PATIENCE_SECONDS
    scene = Scene(directory, database, None, plan, seed, {}, patience, sinks, search)
    scene.run()
    assert not scene.differences(), scene.struck


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_leave_differences(
    tmp_path: Path, database: PostgresServer, cache: RedisServer, mistake: str
) -> None:
    role, kills = MISTAKES[mistake]
    sinks = [role] if role in LAKES else SINKS
    breaks = {role: mistake}
    scene = Scene(tmp_path, database, cache, {role: kills}, seed=1, breaks=breaks, sinks=sinks)
    scene.run()
    wrong = SINKS if role == "capture" else [role]
    assert sorted(scene.differences()) == sorted(wrong)
