"""Databases for tests of tables: those of the stores' tests."""

from __future__ import annotations

from tests.pipelines.stores.conftest import postgres, postgres_database

__all__ = ["postgres", "postgres_database"]
