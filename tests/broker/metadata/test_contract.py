"""What every home of the metadata promises (`MetadataLog`), shown for each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from millstream.broker.metadata.store import MetadataLog, registration
from millstream.coordination.cluster import ClusterImage, ResourceType
from millstream.coordination.cluster_features import INITIAL_FEATURES
from millstream.coordination.cluster_records import (
    ConfigRecord,
    MetadataRecord,
    RegisterBrokerRecord,
)
from millstream.coordination.cluster_security import (
    decide_new_acls,
    decide_quotas,
    decide_removed_acls,
    decide_scram,
)
from millstream.security.acls import AclEntry, AclFilter
from millstream.security.scram import ScramCredential
from tests.broker.metadata.homes import ENDPOINT, decided_on
from tests.broker.metadata.places import PLACES, SHARED_PLACES, Place, ZooKeeperPlace
from tests.peers.patience import PATIENCE_SECONDS


@pytest.fixture(params=[*sorted(PLACES), "zookeeper"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "zookeeper":
        return ZooKeeperPlace(request.getfixturevalue("zookeeper").address)
    return PLACES[request.param](tmp_path / "metadata")


@pytest.fixture(params=[*SHARED_PLACES, "zookeeper"])
def shared_place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "zookeeper":
        return ZooKeeperPlace(request.getfixturevalue("zookeeper").address)
    return PLACES[request.param](tmp_path / "metadata")


def setting(name: str, value: str) -> ConfigRecord:
    return ConfigRecord(ResourceType.GROUP, "g", name, value)


def settings(image: ClusterImage) -> dict[str, str]:
    return dict(image.config(ResourceType.GROUP, "g"))


def broker(node_id: int, image: ClusterImage) -> RegisterBrokerRecord:
    return registration(node_id, [ENDPOINT], epoch=image.version + 1, rack=None, directories=[])


async def set_value(home: MetadataLog, name: str, value: str) -> ClusterImage:
    return await home.change(lambda image: [setting(name, value)])


async def count_up(home: MetadataLog, name: str = "count") -> int:
    """Add one to a setting; returns how often it was decided."""
    decided = 0

    def decide(image: ClusterImage) -> Sequence[MetadataRecord]:
        nonlocal decided
        decided += 1
        return [setting(name, str(int(settings(image).get(name, "0")) + 1))]

    await home.change(decide)
    return decided


async def until(home: MetadataLog, version: int) -> None:
    """Wait for a notice of this version."""
    arrived = asyncio.Event()
    home.subscribe(lambda before, now: arrived.set() if now.version >= version else None)
    if home.image.version < version:
        await asyncio.wait_for(arrived.wait(), PATIENCE_SECONDS)


def test_new_metadata_have_the_initial_features(place: Place) -> None:
    async def scenario() -> None:
        home = await place.open()
        assert home.image.features == INITIAL_FEATURES
        await place.close(home)

    asyncio.run(scenario())


@pytest.mark.parametrize("is_killed", [False, True])
def test_commits_survive_the_broker(place: Place, is_killed: bool) -> None:
    async def scenario() -> None:
        home = await place.open()
        await set_value(home, "a", "1")
        before = home.image
        await (place.kill(home) if is_killed else place.close(home))
        home = await place.open()
        assert home.image == before
        await place.close(home)

    asyncio.run(scenario())


def test_commits_survive_snapshots(place: Place) -> None:
    async def scenario() -> None:
        home = await place.open()
        for number in range(200):
            await set_value(home, f"a{number % 3}", str(number))
        before = home.image
        await place.close(home)
        home = await place.open()
        assert home.image == before
        await place.close(home)

    asyncio.run(scenario())


@pytest.mark.parametrize("is_killed", [False, True])
def test_access_lists_credentials_and_quotas_survive(place: Place, is_killed: bool) -> None:
    """Created, removed, created again; in the log and, after many commits, in a snapshot."""

    async def scenario() -> None:
        home = await place.open()
        user = frozenset({("user", "a"), ("client-id", None)})
        entry = AclEntry(2, "t", 3, "User:a", "*", 3, 3)
        credential = ScramCredential(b"salt", b"stored", b"server", 4096)
        for number in range(40):
            await home.change(lambda image: decide_new_acls(image.acls, [entry]))
            await home.change(lambda image: decide_scram(image.scram, {("a", 1): credential})[0])
            await home.change(
                lambda image, rate=number: decide_quotas(image.quotas, {user: {"k": rate}})
            )
            if number % 3:
                await home.change(lambda image: decide_removed_acls(image.acls, [AclFilter()])[0])
                await home.change(lambda image: decide_scram(image.scram, {("a", 1): None})[0])
        before = home.image
        assert list(before.acls.values()) == [entry]
        await (place.kill(home) if is_killed else place.close(home))
        home = await place.open()
        assert home.image.security == before.security
        assert home.image.scram == {("a", 1): credential}
        assert home.image.quotas == {user: {"k": 39}}
        await place.close(home)

    asyncio.run(scenario())


def test_decisions_made_together_see_each_other(place: Place) -> None:
    async def scenario() -> None:
        home = await place.open()
        await asyncio.gather(*(count_up(home) for _ in range(5)))
        assert settings(home.image) == {"count": "5"}
        await place.close(home)

    asyncio.run(scenario())


def test_refused_decision_commits_nothing(place: Place) -> None:
    async def scenario() -> None:
        home = await place.open()
        before = home.image

        def refuse(image: ClusterImage) -> Sequence[MetadataRecord]:
            raise ValueError("refused")

        with pytest.raises(ValueError, match="refused"):
            await home.change(refuse)
        assert await home.change(lambda image: []) is before
        await set_value(home, "a", "1")
        assert home.image.version == before.version + 1
        await place.close(home)

    asyncio.run(scenario())


def test_subscribers_hear_of_a_commit_before_it_returns(place: Place) -> None:
    async def scenario() -> None:
        home = await place.open()
        heard: list[tuple[int, int]] = []
        version = home.image.version
        home.subscribe(lambda before, now: heard.append((before.version, now.version)))
        await home.change(decided_on(version, setting("a", "1"), setting("b", "1")))
        assert heard == [(version, version + 2)]
        await place.close(home)

    asyncio.run(scenario())


def test_commit_waits_for_the_work_of_subscribers_but_the_next_does_not(place: Place) -> None:
    async def scenario() -> None:
        home = await place.open()
        unfinished = asyncio.get_running_loop().create_future()
        waits = iter([unfinished])
        home.subscribe(lambda before, now: next(waits, None))
        version = home.image.version
        first = asyncio.ensure_future(set_value(home, "a", "1"))
        while home.image.version == version:
            await asyncio.sleep(0.001)
        await set_value(home, "b", "1")
        assert not first.done()
        unfinished.set_result(None)
        await first
        await place.close(home)

    asyncio.run(scenario())


def test_commit_of_a_caller_that_is_cancelled_becomes_visible(place: Place) -> None:
    async def scenario() -> None:
        home = await place.open()
        task = asyncio.ensure_future(set_value(home, "a", "1"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await set_value(home, "b", "1")
        assert settings(home.image) == {"a": "1", "b": "1"}
        await place.close(home)

    asyncio.run(scenario())


def test_broker_is_fenced_at_a_clean_stop_and_registers_again(place: Place) -> None:
    async def scenario() -> None:
        home = await place.open()
        await home.register(broker(1, home.image))
        await place.close(home)
        home = await place.open()
        assert home.image.brokers[1].fenced
        await home.register(broker(1, home.image))
        assert not home.image.brokers[1].fenced
        await place.close(home)

    asyncio.run(scenario())


def test_topics_deleted_since_the_last_snapshot_are_known(place: Place) -> None:
    from uuid import uuid4

    from millstream.coordination.cluster_records import RemoveTopicRecord, TopicRecord

    async def scenario() -> None:
        home = await place.open()
        topic_id = uuid4()
        await home.change(lambda image: [TopicRecord("t", topic_id)])
        await home.change(lambda image: [RemoveTopicRecord(topic_id)])
        await place.close(home)
        home = await place.open()
        assert topic_id in home.deleted_topic_ids
        await place.close(home)

    asyncio.run(scenario())


# Several brokers


def test_refresh_shows_the_commits_of_others(shared_place: Place) -> None:
    async def scenario() -> None:
        one, two = await shared_place.open(1), await shared_place.open(2)
        for number in range(20):
            writer, reader = (one, two) if number % 2 else (two, one)
            committed = await set_value(writer, "a", str(number))
            assert (await reader.refresh()).version == committed.version
            assert settings(reader.image) == {"a": str(number)}
        await shared_place.close(one)
        await shared_place.close(two)

    asyncio.run(scenario())


def test_notices_bring_the_commits_of_others(shared_place: Place) -> None:
    async def scenario() -> None:
        one, two = await shared_place.open(1), await shared_place.open(2)
        heard: list[tuple[int, int]] = []
        two.subscribe(lambda before, now: heard.append((before.version, now.version)))
        start = two.image.version
        for number in range(50):
            committed = await set_value(one, "a", str(number))
        await until(two, committed.version)
        assert two.image == one.image
        assert [before for before, _ in heard] == [start, *(now for _, now in heard[:-1])]
        await shared_place.close(one)
        await shared_place.close(two)

    asyncio.run(scenario())


def test_decisions_of_several_brokers_are_made_one_after_the_other(shared_place: Place) -> None:
    async def scenario() -> None:
        homes = [await shared_place.open(node_id) for node_id in range(1, 5)]
        start = homes[0].image.version

        async def work(home: MetadataLog) -> None:
            for _ in range(20):
                await count_up(home)

        await asyncio.gather(*map(work, homes))
        for home in homes:
            image = await home.refresh()
            assert settings(image) == {"count": "80"}
            assert image.version == start + 80
        for home in homes:
            await shared_place.close(home)

    asyncio.run(scenario())


def test_decision_is_based_on_the_commits_that_were_complete_before(shared_place: Place) -> None:
    async def scenario() -> None:
        one, two = await shared_place.open(1), await shared_place.open(2)
        for number in range(10):
            image = await set_value(one, "a", str(number))
            await two.change(decided_on(image.version, setting("b", str(number))))
            await count_up(one)
        assert settings(await one.refresh())["count"] == "10"
        await shared_place.close(one)
        await shared_place.close(two)

    asyncio.run(scenario())


@pytest.mark.slow_with("zookeeper")
def test_broker_that_others_have_outrun_by_snapshots_catches_up(shared_place: Place) -> None:
    async def scenario() -> None:
        one = await shared_place.open(1)
        await set_value(one, "a", "1")
        two = await shared_place.open(2)
        await asyncio.to_thread(asyncio.run, _change_often(shared_place))  # without a turn for two
        assert await two.refresh() == await one.refresh()
        assert settings(two.image)["b"] == "299"
        await set_value(two, "c", "1")
        assert settings(await one.refresh())["c"] == "1"
        await shared_place.close(one)
        await shared_place.close(two)

    asyncio.run(scenario())


async def _change_often(place: Place) -> None:
    home = await place.open(3)
    for number in range(300):
        await set_value(home, "b", str(number))
    await place.close(home)


def test_killed_broker_leaves_the_others_working(shared_place: Place) -> None:
    async def scenario() -> None:
        one, two = await shared_place.open(1), await shared_place.open(2)
        await set_value(one, "a", "1")
        await shared_place.kill(one)
        await count_up(two)
        one = await shared_place.open(1)
        assert settings(one.image) == {"a": "1", "count": "1"}
        await shared_place.close(one)
        await shared_place.close(two)

    asyncio.run(scenario())
