"""Decisions by access control entries, compared with those of Apache Kafka's StandardAuthorizer."""

from __future__ import annotations

import json
import random
import subprocess
from typing import Any

import pytest

from millstream.security.acl_index import AclIndex
from millstream.security.acls import AclEntry, Operation, PatternType, Permission, ResourceType
from tests.peers.java_runtime import PeerMissing, java_program
from tests.peers.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.java, pytest.mark.slow]

WORLDS = 400
QUESTIONS = 40
SUPER_USER = "User:root"
NAMES = ["a", "ab", "abc", "abd", "b", "hardcode", "hard"]
PATTERNS = [*NAMES, "*"]
PRINCIPALS = ["User:a", "User:b", "User:*", "Group:a", "User:CN=x,O=y"]
USERS = ["User:a", "User:b", "User:CN=x,O=y", SUPER_USER]
HOSTS = ["10.0.0.1", "10.0.0.2"]
OPERATIONS = [it for it in Operation if it >= Operation.ALL]


def new_world(chance: random.Random) -> dict[str, Any]:
    entries = [
        AclEntry(
            chance.choice([ResourceType.TOPIC, ResourceType.GROUP]),
            chance.choice(PATTERNS),
            chance.choice([PatternType.LITERAL, PatternType.PREFIXED]),
            chance.choice(PRINCIPALS),
            chance.choice(["*", *HOSTS]),
            chance.choice(OPERATIONS),
            chance.choice([Permission.ALLOW, Permission.ALLOW, Permission.DENY]),
        )
        for _ in range(chance.choice([0, 1, 2, 5, 10, 30]))
    ]
    questions = [
        (
            chance.choice(USERS),
            chance.choice(HOSTS),
            chance.choice(OPERATIONS[1:]),
            chance.choice([ResourceType.TOPIC, ResourceType.GROUP]),
            chance.choice([*NAMES, "abcd", "x", None]),
        )
        for _ in range(QUESTIONS)
    ]
    by_default = chance.random() < 0.3
    return {
        "entries": list(dict.fromkeys(entries)), "questions": questions, "by_default": by_default,
        "super_users": SUPER_USER,
    }  # fmt: skip


def decide(world: dict[str, Any]) -> str:
    index = AclIndex(world["entries"])
    answers = []
    for principal, host, operation, kind, name in world["questions"]:
        by_default = world["by_default"]
        if principal == SUPER_USER:
            allowed = True
        elif name is None:
            allowed = index.allows_somewhere(
                principal, host, operation, kind, by_default=by_default
            )
        else:
            allowed = index.allows(principal, host, operation, kind, name, by_default=by_default)
        answers.append("1" if allowed else "0")
    return "".join(answers)


def test_decisions_are_those_of_apache_kafka() -> None:
    chance = random.Random(17)
    worlds = [new_world(chance) for _ in range(WORLDS)]
    try:
        command = java_program("AuthorizerProgram", sources="java/authorizer")
    except PeerMissing as missing:
        pytest.skip(str(missing))
    lines = "".join(json.dumps(world) + "\n" for world in worlds)
    result = subprocess.run(
        command, input=lines, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    answers = result.stdout.splitlines()
    assert len(answers) == WORLDS, result.stderr
    for world, answer in zip(worlds, answers, strict=True):
        found = decide(world)
        for question, ours, theirs in zip(world["questions"], found, answer, strict=True):
            assert ours == theirs, (question, world)
    assert {character for answer in answers for character in answer} == {"0", "1"}
