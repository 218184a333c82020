"""What the decision topic contains of versions: writers, and the last switch."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.running.settings import Settings
from millstream.pipelines.versions.marks import (
    check_store_is_new_enough,
    note_switch,
    open_cluster,
    read_marks,
)
from millstream.pipelines.versions.registry import Versions
from millstream.pipelines.writing.decisions import DecisionLog
from tests.pipelines.conftest import Topics


def test_store_from_an_older_copy_is_refused(topics: Topics, tmp_path: Path) -> None:
    settings = Settings(tmp_path, broker=topics.bootstrap)
    name = topics.create()  # a name that no other test has
    with open_cluster(settings) as cluster:
        DecisionLog(cluster, "millstream-versions-test").create_topic()
        assert read_marks(cluster, name).number == 0
        for number in (1, 2):
            note_switch(cluster, Versions(name, number, "2"))
        assert read_marks(cluster, name).number == 2
        check_store_is_new_enough(cluster, Versions(name, 2, "2"))
        with pytest.raises(ConfigError, match=r"has seen 1 switches of .* and its topics 2"):
            check_store_is_new_enough(cluster, Versions(name, 1, "1"))
