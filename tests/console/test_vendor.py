"""Files of others that the console serves, or that its tests use: exactly as they were published.

To update one: `npm pack NAME@VERSION`, copy the file and its LICENSE, and change its hash here.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from millstream.console.files import STATIC

HASHES = {
    "htmx/htmx.min.js": "e484d9171a9db30a39c8f16e3d709d4137f3211c659f8e6125816635033d593f",
    "htmx/hx-sse.min.js": "8a834680c4000a9034d79228872372a92e140c810a075cb6d4a76690dfc13085",
    "uplot/uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uplot/uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "dagre/dagre.min.js": "54a503e346f93ca0bb10abe7999587e037262935687aca45eb4e4b0f64bbb578",
}
AXE = "20c09fe157a8a34a30e241aaa1fcdade657734f08ab379ecfbeb7d45cc46e878"
VENDOR = STATIC / "vendor"
VERSIONS = {"htmx": "htmx.org 4.0.0", "uplot": "uplot 1.6.32", "dagre": "@dagrejs/dagre 3.1.3"}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("name", HASHES)
def test_files_are_as_published(name: str) -> None:
    assert digest(VENDOR / name) == HASHES[name]


def test_axe_is_as_published() -> None:
    assert digest(Path(__file__).parent / "vendor" / "axe-core" / "axe.min.js") == AXE


def test_nothing_else_is_there() -> None:
    found = {str(path.relative_to(VENDOR)) for path in VENDOR.rglob("*") if path.is_file()}
    assert found == {*HASHES, *(f"{package}/LICENSE" for package in VERSIONS)}


def test_licences_allow_it() -> None:
    for package in VERSIONS:
        text = (VENDOR / package / "LICENSE").read_text(encoding="utf-8")
        assert "Permission is hereby granted" in text or "Permission to use, copy" in text
