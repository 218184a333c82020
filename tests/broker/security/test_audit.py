"""The audit: what is recorded, how often, and what happens if it cannot be written."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from millstream.broker.security import audit as module
from millstream.broker.security.audit import (
    EVENTS_MAX,
    NAME_LENGTH_MAX,
    Audit,
    FailedAuthentication,
)
from millstream.broker.tasks import Tasks
from millstream.security.acls import Operation, ResourceType
from millstream.testing.clock import ManualClock

DENIED = ("User:alice", "10.0.0.7", Operation.WRITE, ResourceType.TOPIC)
FAILED = FailedAuthentication("10.0.0.8", "SASL_SSL", "PLAIN", "User:eve", "wrong password")


def run(
    scenario: Callable[[Audit], Coroutine[Any, Any, None]], lines: list[bytes] | None = None
) -> None:
    async def main() -> None:
        tasks = Tasks(asyncio.get_running_loop())
        audit = Audit(tasks, ManualClock(), 1)

        async def write(written: list[bytes]) -> None:
            assert lines is not None
            lines.extend(written)

        if lines is not None:
            audit.write_to(write)
        await scenario(audit)
        await tasks.cancel()

    asyncio.run(main())


def test_equal_events_are_one_line_with_their_count() -> None:
    lines: list[bytes] = []

    async def scenario(audit: Audit) -> None:
        for _ in range(3):
            audit.decided(*DENIED, "orders", allowed=False)
        audit.decided(*DENIED, "bills", allowed=True)
        audit.authentication_failed(FAILED)
        await audit.close()
        assert (audit.denied_count, audit.failed_authentication_count) == (3, 1)

    run(scenario, lines)
    denied, allowed, failed = map(json.loads, lines)
    assert denied == {
        "time": denied["time"], "event": "authorization", "broker": 1, "count": 3,
        "principal": "User:alice", "host": "10.0.0.7", "operation": "WRITE",
        "resourceType": "TOPIC", "resourceName": "orders", "allowed": False,
    }  # fmt: skip
    assert denied["time"].endswith("Z")
    assert allowed["allowed"] is True
    assert failed["event"] == "authentication"
    assert (failed["principal"], failed["mechanism"], failed["reason"]) == (
        "User:eve",
        "PLAIN",
        "wrong password",
    )


def test_events_are_written_by_themselves() -> None:
    lines: list[bytes] = []

    async def scenario(audit: Audit) -> None:
        for name in ("a", "b"):
            audit.decided(*DENIED, name, allowed=False)
            async with asyncio.timeout(60):
                while not lines or json.loads(lines[-1])["resourceName"] != name:
                    await asyncio.sleep(0.01)

    run(scenario, lines)
    assert len(lines) == 2


def test_too_many_events_are_dropped_and_counted() -> None:
    lines: list[bytes] = []

    async def scenario(audit: Audit) -> None:
        for number in range(EVENTS_MAX + 7):
            audit.decided(*DENIED, f"t{number}", allowed=False)
        await audit.close()

    run(scenario, lines)
    assert len(lines) == EVENTS_MAX + 1
    assert json.loads(lines[-1]) | {"time": ""} == {
        "time": "", "event": "dropped", "broker": 1, "count": 7,
    }  # fmt: skip


def test_events_that_cannot_be_written_are_counted_with_the_next(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lines: list[bytes] = []

    async def scenario(audit: Audit) -> None:
        good = audit._write

        async def fail(written: list[bytes]) -> None:
            raise OSError("disk full")

        audit.write_to(fail)
        audit.decided(*DENIED, "a", allowed=False)
        audit.decided(*DENIED, "a", allowed=False)
        await audit.close()
        assert good is not None
        audit.write_to(good)
        audit.decided(*DENIED, "b", allowed=False)
        await audit.close()

    run(scenario, lines)
    assert "disk full" in caplog.text
    written, dropped = map(json.loads, lines)
    assert (written["resourceName"], dropped["count"]) == ("b", 2)


def test_log_has_kafkas_words(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(audit: Audit) -> None:
        audit.decided(*DENIED, "orders", allowed=False)
        audit.decided(*DENIED, "orders", allowed=False)
        audit.authentication_failed(FAILED)
        await audit.close()

    with caplog.at_level(logging.INFO, "kafka.authorizer.logger"):
        run(scenario)
    assert [record.getMessage() for record in caplog.records] == [
        "Principal = User:alice is Denied operation = WRITE from host = 10.0.0.7 on resource = "
        "Topic:LITERAL:orders (2 times)",
        "Principal = User:eve failed to authenticate from host = 10.0.0.8 with PLAIN on listener = "
        "SASL_SSL: wrong password",
    ]


def test_what_is_allowed_is_wanted_in_a_detailed_log_only() -> None:
    async def scenario(audit: Audit) -> None:
        level = module.audit_logger.level
        try:
            module.audit_logger.setLevel(logging.INFO)
            audit.look_at_levels()
            assert not audit.wants_allowed
            module.audit_logger.setLevel(logging.DEBUG)
            audit.look_at_levels()
            assert audit.wants_allowed
        finally:
            module.audit_logger.setLevel(level)

    run(scenario)


def test_reading_the_audit_is_not_recorded_for_ever() -> None:
    lines: list[bytes] = []

    async def scenario(audit: Audit) -> None:
        audit.own_topic = "audit"
        reading = (*DENIED[:2], Operation.READ, ResourceType.TOPIC)
        audit.decided(*reading, "audit", allowed=True)
        audit.decided(*reading, "audit", allowed=False)
        await audit.close()

    run(scenario, lines)
    assert len(lines) == 1


def test_deleting_the_audit_is_recorded() -> None:
    lines: list[bytes] = []

    async def scenario(audit: Audit) -> None:
        audit.own_topic = "audit"
        who = DENIED[:2]
        audit.decided(*who, Operation.DESCRIBE, ResourceType.TOPIC, "audit", allowed=True)
        audit.decided(*who, Operation.DELETE, ResourceType.TOPIC, "audit", allowed=True)
        audit.decided(*who, Operation.WRITE, ResourceType.TOPIC, "audit", allowed=True)
        audit.decided(*who, Operation.READ, ResourceType.GROUP, "audit", allowed=True)
        await audit.close()

    run(scenario, lines)
    events = [json.loads(line) for line in lines]
    assert [(it["operation"], it["resourceType"]) for it in events] == [
        ("DELETE", "TOPIC"),
        ("WRITE", "TOPIC"),
        ("READ", "GROUP"),
    ]


def test_name_of_who_failed_to_authenticate_is_cut() -> None:
    lines: list[bytes] = []

    async def scenario(audit: Audit) -> None:
        audit.authentication_failed(
            FAILED._replace(principal="User:" + "x" * 2_000_000, reason="y" * 2_000_000)
        )
        await audit.close()

    run(scenario, lines)
    (line,) = lines
    assert len(line) < 2 * NAME_LENGTH_MAX + 500
    assert json.loads(line)["principal"].startswith("User:xxx")


def test_batch_that_cannot_be_written_does_not_take_others_with_it() -> None:
    lines: list[bytes] = []

    async def scenario(audit: Audit) -> None:
        good = audit._write
        assert good is not None
        calls = 0

        async def fail_once(written: list[bytes]) -> None:
            nonlocal calls
            calls += 1
            if calls == 2:
                raise OSError("disk full")
            await good(written)

        audit.write_to(fail_once)
        for number in range(EVENTS_MAX):
            audit.decided(*DENIED, f"{number} " + "x" * 400, allowed=False)
        await audit.close()
        assert calls > 3
        await audit.close()

    run(scenario, lines)
    dropped = json.loads(lines[-1])
    assert dropped["event"] == "dropped"
    assert len(lines) - 1 + dropped["count"] == EVENTS_MAX
    assert 0 < dropped["count"] < EVENTS_MAX / 2


def test_names_of_clients_are_cut_and_cannot_forge_lines(caplog: pytest.LogCaptureFixture) -> None:
    lines: list[bytes] = []

    async def scenario(audit: Audit) -> None:
        audit.decided(*DENIED, "x\nPrincipal = User:admin is Allowed", allowed=False)
        audit.decided(*DENIED, "y" * 30_000, allowed=False)
        await audit.close()

    with caplog.at_level(logging.INFO, "kafka.authorizer.logger"):
        run(scenario, lines)
    forged, long = (record.getMessage() for record in caplog.records)
    assert "\n" not in forged
    assert len(long) < 1_000
    assert all(len(line) < 1_000 and b"\n" not in line for line in lines)
