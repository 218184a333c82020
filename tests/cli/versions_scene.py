"""A store with two versions of `revenue` that do not run, for the commands on versions."""

from __future__ import annotations

from pathlib import Path

from millstream.pipelines.stores import open_store
from millstream.pipelines.versions.catalog import open_catalog
from tests.pipelines.stores.conftest import Database
from tests.pipelines.versions.conftest import Scene


def two_versions(directory: Path) -> Database:
    """Both at offset 10; they differ in monday's total."""
    database = Database(f"sqlite:///{directory}/.millstream/store.db")
    with open_catalog(database.url) as catalog, open_store(database.url) as store:
        scene = Scene(database, catalog, store)
        for version, total in (("1", 1.0), ("2", 2.0)):
            scene.deploy(version)
            scene.write(version, 0, 10, [("monday", total), ("tuesday", 5.0)])
            scene.caught_up(version)
    return database
