"""The reference of settings is what the registry says."""

from __future__ import annotations

from pathlib import Path

from millstream.config.broker import BROKER_SETTINGS, GROUP_SETTINGS, TOPIC_SETTINGS
from millstream.config.reference import PATH, render

ROOT = Path(__file__).resolve().parents[2]


def test_reference_is_current() -> None:
    written = (ROOT / PATH).read_text(encoding="utf-8")
    assert written == render(), "run: python -m millstream.config.reference"


def test_reference_names_every_setting() -> None:
    page = render()
    for settings in (BROKER_SETTINGS, TOPIC_SETTINGS, GROUP_SETTINGS):
        for name, setting in settings.items():
            assert setting.internal or f"### `{name}`" in page
