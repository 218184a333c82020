"""The classic protocol, event by event."""

from __future__ import annotations

import pytest

from millstream.coordination.groups.classic_messages import LeavingMember
from millstream.coordination.groups.classic_state import ClassicState
from millstream.coordination.groups.group import GroupSettings
from millstream.errors import ApiError, ErrorCode
from tests.coordination.groups.classic_harness import (
    INITIAL_DELAY_MS,
    REBALANCE_MS,
    SESSION_MS,
    ClassicDriver,
    Client,
    form_group,
    leave,
    settle,
    subscription,
)


def refused(error: pytest.ExceptionInfo[ApiError]) -> ErrorCode:
    return error.value.code


# --- joining


def test_new_dynamic_member_is_told_its_id_first() -> None:
    driver = ClassicDriver()
    client = Client(driver)
    client._send_join()
    assert client.joined is not None
    assert client.joined.error is ErrorCode.MEMBER_ID_REQUIRED
    assert client.joined.member_id.startswith("client-")
    assert driver.classic().state is ClassicState.EMPTY


def test_new_dynamic_member_before_v4_joins_at_once() -> None:
    driver = ClassicDriver()
    client = Client(driver, api_version=3)
    client.send_join()
    assert client.joined is None
    assert driver.classic().state is ClassicState.PREPARING_REBALANCE


def test_first_rebalance_waits_for_more_members() -> None:
    """Each newcomer prolongs the wait, so that a fleet that starts together rebalances once."""
    driver = ClassicDriver()
    first, second = Client(driver, "a"), Client(driver, "b")
    first.send_join()
    driver.advance(INITIAL_DELAY_MS - 1)
    second.send_join()
    driver.advance(1)
    assert first.joined is None
    driver.advance(INITIAL_DELAY_MS)
    assert first.take_join().generation == second.take_join().generation == 1


def test_first_rebalance_waits_no_longer_than_the_rebalance_timeout() -> None:
    driver = ClassicDriver()
    clients = [Client(driver, f"c{number}", rebalance_timeout_ms=7_000) for number in range(20)]
    for client in clients:
        client.send_join()
        driver.advance(1_000)
    assert clients[0].joined is not None


def test_leader_alone_is_told_the_members() -> None:
    driver = ClassicDriver()
    clients = [Client(driver, name) for name in "abc"]
    for client in clients:
        client.send_join()
    driver.advance(INITIAL_DELAY_MS * 4)
    answers = [client.take_join() for client in clients]
    assert {answer.leader for answer in answers} == {clients[0].member_id}
    assert {it.member_id for it in answers[0].members} == {it.member_id for it in clients}
    assert answers[1].members == answers[2].members == ()


def test_unknown_member_id_is_refused() -> None:
    driver = ClassicDriver()
    client = Client(driver)
    client.member_id = "made-up"
    with pytest.raises(ApiError) as error:
        client.send_join()
    assert refused(error) is ErrorCode.UNKNOWN_MEMBER_ID
    form_group(driver, Client(driver))
    with pytest.raises(ApiError) as error:
        client.send_join()
    assert refused(error) is ErrorCode.UNKNOWN_MEMBER_ID


def test_session_timeout_out_of_bounds_is_refused() -> None:
    for timeout_ms in (5_999, 1_800_001):
        with pytest.raises(ApiError) as error:
            Client(ClassicDriver(), session_timeout_ms=timeout_ms).send_join()
        assert refused(error) is ErrorCode.INVALID_SESSION_TIMEOUT


def test_empty_group_id_is_refused() -> None:
    with pytest.raises(ApiError) as error:
        Client(ClassicDriver(), group_id="").send_join()
    assert refused(error) is ErrorCode.INVALID_GROUP_ID


def test_protocol_that_nobody_shares_is_refused() -> None:
    driver = ClassicDriver()
    form_group(driver, Client(driver))
    for stranger in (
        Client(driver, protocols=[("sticky", b"")]),
        Client(driver, protocol_type="connect"),
        Client(driver, protocols=[]),
    ):
        with pytest.raises(ApiError) as error:
            stranger.send_join()
        assert refused(error) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_group_without_protocol_type_is_refused() -> None:
    with pytest.raises(ApiError) as error:
        Client(ClassicDriver(), protocol_type="").send_join()
    assert refused(error) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_members_vote_for_the_protocol() -> None:
    driver = ClassicDriver()
    orders = (("range", "sticky"), ("sticky", "range"), ("sticky", "range"))
    clients = [
        Client(driver, str(number), protocols=[(name, b"") for name in names])
        for number, names in enumerate(orders)
    ]
    for client in clients:
        client.send_join()
    driver.advance(INITIAL_DELAY_MS * 4)
    assert clients[0].take_join().protocol_name == "sticky"


def test_full_group_refuses_another_member() -> None:
    driver = ClassicDriver(GroupSettings(group_max_size=1))
    first, second = Client(driver, "a"), Client(driver, "b")
    form_group(driver, first)
    second.send_join()
    assert second.joined is not None
    assert second.joined.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert first.heartbeat() is ErrorCode.NONE


def test_retried_join_ends_the_earlier_one() -> None:
    driver = ClassicDriver()
    first, second = Client(driver, "a"), Client(driver, "b")
    form_group(driver, first, second)
    first.send_join()
    earlier = first.join_token
    first.send_join()
    assert driver.answers[earlier].error is ErrorCode.REBALANCE_IN_PROGRESS
    assert first.joined is None


# --- rebalancing


def test_newcomer_makes_the_others_rejoin() -> None:
    driver = ClassicDriver()
    first, second = Client(driver, "a"), Client(driver, "b")
    form_group(driver, first)
    second.send_join()
    assert first.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    first.send_join()
    settle(driver, first, second)
    assert driver.classic().generation == 2
    assert driver.classic().state is ClassicState.STABLE


def test_member_that_does_not_rejoin_in_time_is_out() -> None:
    driver = ClassicDriver()
    first, second = Client(driver, "a", session_timeout_ms=90_000), Client(driver, "b")
    form_group(driver, first)
    second.send_join()
    driver.advance(REBALANCE_MS - 1)
    assert second.joined is None
    driver.advance(1)
    assert second.take_join().leader == second.member_id
    with pytest.raises(ApiError) as error:
        first.heartbeat()
    assert refused(error) is ErrorCode.UNKNOWN_MEMBER_ID


def test_silent_member_is_out_after_its_session() -> None:
    driver = ClassicDriver()
    first, second = Client(driver, "a"), Client(driver, "b")
    form_group(driver, first, second)
    driver.advance(SESSION_MS - 1)
    second.heartbeat()
    driver.advance(1)
    assert second.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    second.send_join()
    assert second.take_join().leader == second.member_id


def test_member_that_waits_needs_no_heartbeat() -> None:
    driver = ClassicDriver()
    first, second = Client(driver, "a", session_timeout_ms=50_000), Client(driver, "b")
    form_group(driver, first, second)
    second.send_join()  # unchanged: answered at once
    second.protocols = tuple(reversed((*second.protocols, *Client(driver).protocols)))
    second.send_join()
    driver.advance(SESSION_MS * 2)
    assert second.member_id in driver.classic().members


def test_pending_member_that_never_joins_does_not_hold_up_the_group() -> None:
    driver = ClassicDriver()
    first, ghost = Client(driver, "a", session_timeout_ms=50_000), Client(driver, "ghost")
    form_group(driver, first)
    ghost._send_join()  # is told its id and never comes back
    first.send_join()
    assert first.joined is None
    driver.advance(SESSION_MS)
    assert first.take_join().generation == 2


def test_leader_may_always_ask_for_a_rebalance() -> None:
    driver = ClassicDriver()
    leader, follower = Client(driver, "a"), Client(driver, "b")
    form_group(driver, leader, follower)
    follower.send_join()
    assert follower.take_join().generation == 1
    leader.send_join()
    assert leader.joined is None
    follower.send_join()
    assert leader.take_join().generation == 2


def test_follower_with_new_metadata_makes_a_rebalance() -> None:
    driver = ClassicDriver()
    leader, follower = Client(driver, "a"), Client(driver, "b")
    form_group(driver, leader, follower)
    follower.protocols = Client(driver, protocols=[("range", subscription("other"))]).protocols
    follower.send_join()
    assert leader.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS


def test_last_member_leaving_empties_the_group() -> None:
    driver = ClassicDriver()
    client = Client(driver)
    form_group(driver, client)
    assert client.leave().error is ErrorCode.NONE
    group = driver.classic()
    assert (group.state, group.generation, group.protocol_name) == (ClassicState.EMPTY, 2, None)
    assert group.protocol_type == "consumer"


# --- sync


def test_sync_waits_for_the_leader() -> None:
    driver = ClassicDriver()
    leader, follower = Client(driver, "a"), Client(driver, "b")
    for client in (leader, follower):
        client.send_join()
    driver.advance(INITIAL_DELAY_MS * 3)
    leader.take_join()
    follower.take_join()
    follower.send_sync()
    assert follower.synced is None
    leader.send_sync({follower.member_id: b"all of it"})
    assert follower.synced is not None
    assert follower.synced.assignment == b"all of it"
    assert leader.synced is not None
    assert leader.synced.assignment == b""


def test_sync_of_another_generation_or_protocol_is_refused() -> None:
    driver = ClassicDriver()
    client = Client(driver)
    client.send_join()
    driver.advance(INITIAL_DELAY_MS)
    client.take_join()
    for changes, code in (
        ({"generation": 0}, ErrorCode.ILLEGAL_GENERATION),
        ({"protocol_name": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "other"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        with pytest.raises(ApiError) as error:
            client.send_sync(**changes)
        assert refused(error) is code


def test_member_that_does_not_sync_in_time_is_out() -> None:
    """The leader assigned, but one member never came for its assignment."""
    driver = ClassicDriver()
    leader = Client(driver, "a", session_timeout_ms=120_000)
    silent = Client(driver, "b", session_timeout_ms=120_000)
    for client in (leader, silent):
        client.send_join()
    driver.advance(INITIAL_DELAY_MS * 3)
    leader.take_join()
    leader.send_sync()
    driver.advance(REBALANCE_MS)
    assert silent.take_join().member_id not in driver.classic().members
    assert leader.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS


def test_sync_waiting_when_a_rebalance_begins_is_told_to_rejoin() -> None:
    driver = ClassicDriver()
    leader, follower = Client(driver, "a"), Client(driver, "b")
    for client in (leader, follower):
        client.send_join()
    driver.advance(INITIAL_DELAY_MS * 3)
    leader.take_join()
    follower.take_join()
    follower.send_sync()
    Client(driver, "c").send_join()
    assert follower.synced is not None
    assert follower.synced.error is ErrorCode.REBALANCE_IN_PROGRESS


def test_lost_answers_are_given_again() -> None:
    driver = ClassicDriver()
    leader, follower = Client(driver, "a"), Client(driver, "b")
    for client in (leader, follower):
        client.send_join()
    driver.advance(INITIAL_DELAY_MS * 3)
    before = leader.take_join()
    leader.send_join()
    assert leader.joined == before
    settle(driver, leader, follower)
    follower.send_sync()
    assert follower.synced is not None
    assert follower.synced.assignment == follower.member_id.encode()


# --- static members


def test_static_member_comes_back_without_a_rebalance() -> None:
    driver = ClassicDriver()
    leader, static = Client(driver, "a"), Client(driver, "b", instance_id="instance")
    form_group(driver, leader, static)
    old_id, static.member_id = static.member_id, ""
    static.send_join()
    answer = static.take_join()
    assert (answer.generation, answer.members, answer.skip_assignment) == (1, (), False)
    assert answer.member_id != old_id
    static.send_sync()
    assert static.synced is not None
    assert static.synced.assignment == old_id.encode()
    assert leader.heartbeat() is ErrorCode.NONE


def test_static_leader_comes_back_and_skips_the_assignment() -> None:
    driver = ClassicDriver()
    static, follower = Client(driver, "a", instance_id="instance"), Client(driver, "b")
    form_group(driver, static, follower)
    static.member_id = ""
    static.send_join()
    answer = static.take_join()
    assert answer.skip_assignment
    assert answer.leader == static.member_id
    assert {it.member_id for it in answer.members} == {static.member_id, follower.member_id}


def test_static_leader_before_v9_is_not_told_that_it_leads() -> None:
    driver = ClassicDriver()
    static = Client(driver, "a", instance_id="instance", api_version=8)
    form_group(driver, static)
    old_id, static.member_id = static.member_id, ""
    static.send_join()
    answer = static.take_join()
    assert (answer.leader, answer.members, answer.skip_assignment) == (old_id, (), False)


def test_replaced_static_member_is_fenced() -> None:
    driver = ClassicDriver()
    old = Client(driver, "a", instance_id="instance")
    form_group(driver, old)
    new = Client(driver, "a", instance_id="instance")
    new.send_join()
    for attempt in (old.heartbeat, old.send_sync, old.send_join, lambda: old.commit(1)):
        with pytest.raises(ApiError) as error:
            attempt()
        assert refused(error) is ErrorCode.FENCED_INSTANCE_ID
    assert old.leave().error is ErrorCode.FENCED_INSTANCE_ID


def test_static_member_waiting_is_fenced_by_its_successor() -> None:
    driver = ClassicDriver()
    old, other = Client(driver, "a", instance_id="instance"), Client(driver, "b")
    form_group(driver, old, other)
    old.protocols = Client(driver, protocols=[("range", subscription("other"))]).protocols
    old.send_join()
    new = Client(driver, "a", instance_id="instance")
    new.send_join()
    assert old.joined is not None
    assert old.joined.error is ErrorCode.FENCED_INSTANCE_ID


def test_static_member_with_another_protocol_makes_a_rebalance() -> None:
    driver = ClassicDriver()
    static = Client(driver, "a", instance_id="instance")
    form_group(driver, static)
    back = Client(driver, "a", instance_id="instance", protocols=[("range", b""), ("new", b"")])
    back.protocols = tuple(reversed(back.protocols))
    back.send_join()
    assert back.take_join().generation == 2


def test_static_member_survives_a_rebalance_it_misses() -> None:
    driver = ClassicDriver()
    static = Client(driver, "a", instance_id="instance", session_timeout_ms=600_000)
    newcomer = Client(driver, "b")
    form_group(driver, static)
    newcomer.send_join()
    driver.advance(REBALANCE_MS)
    assert newcomer.take_join().generation == 2
    assert static.member_id in driver.classic().members


def test_static_members_none_of_which_rejoin_are_waited_for() -> None:
    driver = ClassicDriver()
    static = Client(driver, "a", instance_id="instance", session_timeout_ms=600_000)
    newcomer = Client(driver, "b")
    form_group(driver, static)
    newcomer.send_join()
    leave(driver, LeavingMember(newcomer.member_id, None))
    driver.advance(REBALANCE_MS)
    assert driver.classic().state is ClassicState.PREPARING_REBALANCE
    static.member_id = ""
    static.send_join()
    assert static.take_join().generation == 2


# --- leaving


def test_several_members_leave_at_once() -> None:
    driver = ClassicDriver()
    first = Client(driver, "a")
    static = Client(driver, "b", instance_id="instance")
    staying = Client(driver, "c")
    form_group(driver, first, static, staying)
    left = leave(
        driver,
        LeavingMember(first.member_id, None),
        LeavingMember("", "instance"),
        LeavingMember("nobody", None),
        LeavingMember("", "no such instance"),
    )
    assert [member.error for member in left] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert staying.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    staying.send_join()
    assert staying.take_join().generation == 2


def test_member_that_waits_and_is_removed_is_answered() -> None:
    driver = ClassicDriver()
    first, second = Client(driver, "a"), Client(driver, "b")
    form_group(driver, first, second)
    first.send_join()
    leave(driver, LeavingMember(first.member_id, None))
    assert first.joined is not None
    assert first.joined.error is ErrorCode.UNKNOWN_MEMBER_ID


def test_pending_member_may_leave() -> None:
    driver = ClassicDriver()
    client = Client(driver)
    client._send_join()
    assert client.joined is not None
    assert leave(driver, LeavingMember(client.joined.member_id, None))[0].error is ErrorCode.NONE
    assert driver.classic().is_empty


# --- heartbeats and commits


def test_heartbeat_of_another_generation_is_refused() -> None:
    driver = ClassicDriver()
    client = Client(driver)
    form_group(driver, client)
    with pytest.raises(ApiError) as error:
        client.heartbeat(generation=7)
    assert refused(error) is ErrorCode.ILLEGAL_GENERATION


def test_commit_keeps_the_session_alive() -> None:
    driver = ClassicDriver()
    client = Client(driver)
    form_group(driver, client)
    for _ in range(4):
        driver.advance(SESSION_MS - 1)
        assert client.commit(5) is ErrorCode.NONE
    assert client.heartbeat() is ErrorCode.NONE


def test_commit_needs_the_current_generation() -> None:
    driver = ClassicDriver()
    client = Client(driver)
    form_group(driver, client)
    client.generation = 0
    with pytest.raises(ApiError) as error:
        client.commit(5)
    assert refused(error) is ErrorCode.ILLEGAL_GENERATION


def test_commit_between_join_and_sync_is_told_of_the_rebalance() -> None:
    driver = ClassicDriver()
    client = Client(driver)
    client.send_join()
    driver.advance(INITIAL_DELAY_MS)
    client.take_join()
    with pytest.raises(ApiError) as error:
        client.commit(5)
    assert refused(error) is ErrorCode.REBALANCE_IN_PROGRESS


def test_commit_of_the_previous_generation_is_taken_while_members_rejoin() -> None:
    driver = ClassicDriver()
    client = Client(driver)
    form_group(driver, client)
    Client(driver, "b").send_join()
    assert client.commit(5) is ErrorCode.NONE


# --- reloading


def test_stable_group_is_the_same_after_a_reload() -> None:
    driver = ClassicDriver()
    leader, static = Client(driver, "a"), Client(driver, "b", instance_id="instance")
    form_group(driver, leader, static)
    before = driver.classic().describe()
    driver.reload(compacted=True)
    assert driver.classic().describe() == before
    assert driver.classic().leader_id == leader.member_id
    assert leader.heartbeat() is static.heartbeat() is ErrorCode.NONE
    static.send_sync()
    assert static.synced is not None
    assert static.synced.assignment == static.member_id.encode()


def test_replaced_static_member_is_the_same_after_a_reload() -> None:
    driver = ClassicDriver()
    old = Client(driver, "a", instance_id="instance")
    form_group(driver, old)
    new = Client(driver, "a", instance_id="instance")
    new.send_join()
    new.take_join()
    driver.reload()
    assert new.heartbeat() is ErrorCode.NONE
    with pytest.raises(ApiError) as error:
        old.heartbeat()
    assert refused(error) is ErrorCode.FENCED_INSTANCE_ID


def test_members_who_do_not_come_back_after_a_reload_time_out() -> None:
    driver = ClassicDriver()
    form_group(driver, Client(driver, "a"), Client(driver, "b"))
    driver.reload()
    driver.advance(REBALANCE_MS + SESSION_MS)
    assert driver.classic().is_empty


def test_rebalance_in_the_middle_is_forgotten_by_a_reload() -> None:
    driver = ClassicDriver()
    first, second = Client(driver, "a"), Client(driver, "b")
    form_group(driver, first)
    second.send_join()
    first.send_join()
    first.take_join()
    driver.reload()
    assert driver.classic().generation == 1
    with pytest.raises(ApiError) as error:
        first.heartbeat()
    assert refused(error) is ErrorCode.ILLEGAL_GENERATION
    first.send_join()  # the leader of generation 1: it rebalances
    assert first.take_join().generation == 2
