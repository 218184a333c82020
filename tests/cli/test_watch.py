"""`millstream watch` against a real broker."""

from __future__ import annotations

import json
import time
from pathlib import Path

from millstream.admin.topics import delete_topic
from millstream.cli.watch import line_of
from millstream.client.cluster import Cluster
from millstream.client.topics import NewTopic, create_topics
from millstream.query.watching import Change
from tests.cli.conftest import NUMBERS, Run
from tests.query.scene import Sent, produce


def test_watch_prints_changes_and_continues_at_the_saved_position(
    run: Run, bootstrap_servers: str, tmp_path: Path
) -> None:
    topic = f"watched_{next(NUMBERS)}"
    now_ms = round(time.time() * 1000)
    records = [Sent(b"%d" % n, b"k%d" % (n % 2), timestamp_ms=now_ms) for n in range(6)]
    produce(bootstrap_servers, topic, records)
    options = ["--key", "k1", "--json", "--resume", str(tmp_path / "position"), "-a"]
    lines = []
    for count in ("1", "2"):
        outcome = run("watch", topic, *options, "-c", count, "-b", bootstrap_servers)
        assert outcome.exit_code == 0
        lines += [json.loads(line)["value"] for line in outcome.out.splitlines()]
    assert lines == ["1", "3", "5"]
    with Cluster(bootstrap_servers) as cluster:
        delete_topic(cluster, topic)
        create_topics(cluster, [NewTopic(topic, 1)])
    outcome = run("watch", topic, *options, "-b", bootstrap_servers)
    assert outcome.exit_code == 1
    assert "was deleted and created again" in outcome.err
    assert f"delete {tmp_path / 'position'}" in " ".join(outcome.err.split())


def test_lines_show_deletions() -> None:
    change = Change("t", 0, 5, 0, b"k", None, (("h", None),))
    assert line_of(change, as_json=False).endswith("\tk\tnull")
    assert json.loads(line_of(change, as_json=True)) == {
        "partition": 0,
        "offset": 5,
        "timestamp": 0,
        "key": "k",
        "value": None,
        "headers": {"h": None},
    }
