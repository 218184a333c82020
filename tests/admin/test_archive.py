"""What brokers tell of their archive; the page and the command line show it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from typer.testing import CliRunner

from millstream.admin.archive import archive_path, archive_state
from millstream.cli.archive import app
from millstream.client.cluster import Cluster
from tests.broker.archiving.scenes import archived_end, archiving_broker, create, produce
from tests.peers.patience import wait_until


def test_brokers_tell_what_is_archived_and_why_not(tmp_path: Path) -> None:
    with archiving_broker(tmp_path) as broker, Cluster(broker.bootstrap_servers) as cluster:
        assert archive_state(cluster).partitions == []
        assert archive_path(cluster) == str(tmp_path / "archive")
        create(broker)
        produce(broker, 0, 150)
        wait_until(lambda: archived_end(tmp_path / "archive") > 100)
        wait_until(lambda: archive_state(cluster).partitions[0].state == "up to date")
        (told,) = archive_state(cluster, ["orders"]).partitions
        assert (told.topic, told.start, told.log_end) == ("orders", 0, 150)
        assert told.end == told.records == archived_end(tmp_path / "archive")
        assert told.lag_records == 150 - told.end
        assert min(told.files or 0, told.size_bytes or 0, told.segment_bytes or 0) > 0
        assert (told.newest_ms or 0) < (told.archived_ms or 0)
        assert archive_state(cluster, ["absent"]).partitions == []

        shutil.rmtree(tmp_path / "archive")
        (tmp_path / "archive").write_text("in the way")
        produce(broker, 150, 250)
        wait_until(lambda: archive_state(cluster).partitions[0].state == "failing")
        (told,) = archive_state(cluster).partitions
        assert told.problem
        assert told.lag_bytes > 0
        servers = ["--bootstrap-server", broker.bootstrap_servers]
        shown = CliRunner().invoke(app, ["status", *servers])
        assert "failing" in shown.stdout
        (row,) = json.loads(CliRunner().invoke(app, ["status", "--json", *servers]).stdout)
        assert (row["topic"], row["state"], row["problem"]) == ("orders", "failing", told.problem)


def test_other_brokers_tell_nothing(cluster: Cluster) -> None:
    """Apache Kafka, in slow runs."""
    state = archive_state(cluster)
    is_millstream = 20001 in cluster.connection(cluster.broker_ids()[0]).versions
    assert (state.partitions, state.is_known, state.problems) == ([], is_millstream, [])
    assert archive_path(cluster) is None
