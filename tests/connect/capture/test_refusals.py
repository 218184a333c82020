"""Records that the broker refuses: the capture ends with the command that lets it continue."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from millstream.admin.settings import settings_of_topics
from millstream.client.cluster import Cluster
from tests.connect.capture.harness import TABLE, Setup, final_rows

MILLSTREAM = str(Path(sys.executable).with_name("millstream"))


def run_cure(message: str) -> None:
    """Run the command of a message."""
    command = message.split("`")[1].split()
    assert command[0] == "millstream"
    subprocess.run([MILLSTREAM, *command[1:]], check=True, capture_output=True)


def test_topic_of_a_table_has_no_retention(setup: Setup) -> None:
    """Else rows that have not changed since the snapshot would disappear."""
    setup.execute(TABLE.format("orders"))
    with setup.running() as capture:
        setup.caught_up(capture)
        setup.execute("SELECT pg_logical_emit_message(true, 'a', 'b')")
        setup.caught_up(capture)
    topics = [f"{setup.name}.public.orders", f"{setup.name}.message"]
    with Cluster(setup.bootstrap, client_id="test") as cluster:
        found = settings_of_topics(cluster, topics, ["retention.ms"])
    assert [found[it]["retention.ms"] for it in topics] == ["-1", "604800000"]


def test_row_that_is_too_large_names_table_and_limit(setup: Setup) -> None:
    setup.execute(TABLE.format("orders"))
    with setup.running() as capture:
        setup.caught_up(capture)
    setup.execute("INSERT INTO orders VALUES (1, 0, repeat('x', 3000000)), (2, 0, 'small')")
    message = setup.failure(topic_settings={"max.message.bytes": "9000000"})
    assert (
        f"topic {setup.name}.public.orders of table public.orders refuses rows of 3000" in message
    )
    assert "max.message.bytes is 1048588. Run" in message
    run_cure(message)
    with setup.running() as capture:
        setup.caught_up(capture)
    setup.check("orders")


def test_truncate_that_a_compacted_topic_refuses_is_explained(setup: Setup) -> None:
    setup.execute(TABLE.format("orders"))
    setup.execute("INSERT INTO orders VALUES (1, 0)")
    with setup.running(topic_settings={"cleanup.policy": "compact"}) as capture:
        setup.caught_up(capture)
    setup.execute("TRUNCATE orders")
    message = setup.failure()
    assert "of table public.orders refuses records without a key" in message
    run_cure(message)
    with setup.running() as capture:
        setup.caught_up(capture)
    assert final_rows(setup.read("orders")) == {}
