"""Dataclasses that need little memory: those of the console and of what it asks for.

    from millstream.models import dataclass

    @dataclass(frozen=True)
    class Row: ...

`dataclasses` generates up to six methods for each class, 8 KB; a broker's process, in which a
console may run, has 140 such classes. Here only the constructor is generated, and all classes share
the other methods. Type checkers see `dataclasses.dataclass`; that fields are frozen is checked by
them alone.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, slots=False):
        """See the module. With slots, as `dataclasses` does it."""

        def make(it):
            if slots:
                return dataclasses.dataclass(frozen=frozen, slots=True)(it)
            it.__doc__ = it.__doc__ or it.__name__  # else one is made of the signature
            own = set(it.__dict__)
            made = dataclasses.dataclass(repr=False, eq=False)(it)
            shared = {"__repr__": _repr, "__eq__": _eq, "__hash__": _hash if frozen else None}
            for name, method in shared.items():
                if name not in own:
                    setattr(made, name, method)
            return made

        return make if cls is None else make(cls)


def _repr(self: Any) -> str:
    shown = [f"{it.name}={getattr(self, it.name)!r}" for it in dataclasses.fields(self) if it.repr]
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _values(it: Any) -> tuple[Any, ...]:
    return tuple(getattr(it, field.name) for field in dataclasses.fields(it) if field.compare)


def _eq(self: Any, other: object) -> Any:
    if type(other) is not type(self):
        return NotImplemented
    return _values(self) == _values(other)


def _hash(self: Any) -> int:
    return hash(_values(self))
