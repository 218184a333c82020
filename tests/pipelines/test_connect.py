"""Spark Connect, with a real server: reading and writing topics works, pipelines are refused.

A process is either a client of Connect or has a classic session; so the client is a program of its
own (`connect_client.py`), which starts the server and tells what it saw.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.pipelines.conftest import Topics

CLIENT = Path(__file__).with_name("connect_client.py")
CLIENT_SECONDS_MAX = 600

pytestmark = [pytest.mark.slow, pytest.mark.timeout(CLIENT_SECONDS_MAX + 60)]


@pytest.fixture(scope="module")
def topic(topics: Topics) -> str:
    name = topics.create(partitions=2)
    topics.fill(name, [b'{"id": 1}', b'{"id": 2}'], partition=0)
    topics.fill(name, [b'{"id": 3}'], partition=1)
    return name


@pytest.fixture(scope="module")
def seen(topics: Topics, topic: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the client saw."""
    directory = tmp_path_factory.mktemp("connect")
    done = subprocess.run(
        [sys.executable, CLIENT, topics.bootstrap, topic, topics.create(), directory],
        capture_output=True,
        text=True,
        timeout=CLIENT_SECONDS_MAX,
        check=False,
        cwd=directory,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_connect_session_reads_batches_raw_and_typed(seen: dict[str, Any]) -> None:
    assert seen["raw"] == ['{"id": 1}', '{"id": 2}', '{"id": 3}']
    assert seen["typed"] == [1, 2, 3]


def test_connect_session_reads_streams(seen: dict[str, Any]) -> None:
    assert seen["streamed"] == [1, 2, 3]


def test_connect_session_writes_streams_to_topics(seen: dict[str, Any]) -> None:
    assert seen["written"] == ["1", "2", "3"]


def test_connect_session_computes_a_pipeline_over_history(seen: dict[str, Any]) -> None:
    assert seen["history"] == [2, 3]


def test_connect_session_is_refused_for_pipelines_with_the_reason(seen: dict[str, Any]) -> None:
    refusal = seen["refusal"]
    assert refusal.startswith("ConfigError: pipelines do not run in a Spark Connect session")
    assert "use a classic session (SparkSession.builder.master(...))" in refusal


def test_connect_session_gets_our_words_for_a_topic_that_is_missing(seen: dict[str, Any]) -> None:
    assert "there is no topic nowhere at" in seen["missing"]
