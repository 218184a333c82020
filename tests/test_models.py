"""Light dataclasses behave as those of `dataclasses`."""

from __future__ import annotations

import dataclasses
from dataclasses import field
from typing import Any

import pytest

from millstream.models import dataclass


def classes(decorator: Any) -> tuple[Any, Any, Any]:
    @decorator(frozen=True)
    class Point:
        x: int
        y: int = 0
        secret: str = field(default="", repr=False)
        note: list[str] = field(default_factory=list, compare=False)

    @decorator
    class Open:
        x: int

        def __repr__(self) -> str:
            return "mine"

    @decorator(frozen=True, slots=True)
    class Slotted:
        x: int

    return Point, Open, Slotted


@pytest.mark.parametrize("decorator", [dataclass, dataclasses.dataclass], ids=["light", "standard"])
def test_light_dataclasses_behave_as_the_standard_ones(decorator: Any) -> None:
    point, open_, slotted = classes(decorator)
    one = point(1, 2, "hidden", ["a"])
    assert one == point(1, 2, "hidden", ["b"])
    assert one != point(1, 2)
    assert one != (1, 2, "hidden")
    assert hash(one) == hash(point(1, 2, "hidden"))
    assert repr(one).endswith("Point(x=1, y=2, note=['a'])")
    assert dataclasses.replace(one, x=3) == point(3, 2, "hidden")
    assert [it.name for it in dataclasses.fields(point)] == ["x", "y", "secret", "note"]
    assert dataclasses.asdict(one)["note"] == ["a"]
    assert open_(1) == open_(1)
    assert repr(open_(1)) == "mine"
    with pytest.raises(TypeError):
        hash(open_(1))
    assert not hasattr(slotted(1), "__dict__")
    with pytest.raises(TypeError, match="x"):
        point()
