"""Which sinks and pipelines an excision is to reach."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.client.cluster import Cluster
from millstream.errors import ConfigError
from millstream.excision.derived import Places, plan_derived, read_places
from tests.excision.conftest import ALICE


def test_places_are_relative_to_their_file(tmp_path: Path) -> None:
    file = tmp_path / "places.toml"
    file.write_text('sinks = ["search.toml"]\npipelines = ["shop.py:revenue"]\n')
    found = read_places(file)
    assert found == Places([tmp_path / "search.toml"], [f"{tmp_path}/shop.py:revenue"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sinks = 'search.toml'", "sinks must be a list"),
        ("sink = ['a']", "did you mean 'sinks'"),
        ("= 5", "is not TOML"),
        (None, "cannot read"),
    ],
)
def test_mistakes_in_the_file_are_named(tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "places.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_places(file)


def test_missing_files_are_named(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no\.toml: there is no such file"):
        plan_derived(cluster, Places(sinks=[tmp_path / "no.toml"]), ["orders"], ALICE, "")
    with pytest.raises(ConfigError, match=r"no\.py: there is no such file"):
        plan_derived(cluster, Places(pipelines=[f"{tmp_path}/no.py:it"]), ["orders"], ALICE, "")
