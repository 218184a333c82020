"""Pipelines from a Python file: `shop.py`, `shop.py:revenue`, `shop.py:revenue,alerts`."""

from __future__ import annotations

import os
import sys
from difflib import get_close_matches
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import NamedTuple

from millstream.errors import ConfigError, MillstreamError
from millstream.pipelines.pipeline import Pipeline
from millstream.pipelines.running.prerequisites import check_pyspark


class Target(NamedTuple):
    """A file, and the names of the wanted pipelines; none: all."""

    path: Path
    names: tuple[str, ...] = ()


def parse_target(text: str) -> Target:
    file, colon, names = text.partition(".py:")
    if not colon:
        return Target(Path(text))
    return Target(Path(f"{file}.py"), tuple(it.strip() for it in names.split(",") if it.strip()))


def load_pipelines(target: Target) -> list[Pipeline]:
    """The pipelines of the file in their order; raises `ConfigError` for an unknown name."""
    if not target.path.is_file():
        raise ConfigError(f"{target.path}: there is no such file")
    check_pyspark()
    found = pipelines_in(import_file(target.path))
    if not found:
        raise ConfigError(f"{target.path} defines no pipeline: decorate a function with @pipeline")
    for name in target.names:
        if name not in found:
            close = get_close_matches(name, found, n=1)
            hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(found)}"
            raise ConfigError(f"{target.path} has no pipeline {name}; {hint}")
    return [found[name] for name in target.names or found]


def pipelines_in(module: ModuleType) -> dict[str, Pipeline]:
    """By name; raises `ConfigError` if two have the same name."""
    found: dict[str, Pipeline] = {}
    for it in vars(module).values():
        if not isinstance(it, Pipeline):
            continue
        if found.get(it.name, it) is not it:
            raise ConfigError(
                f"two pipelines are named {it.name}, and a name is a checkpoint and a group: "
                '@pipeline(name="...")'
            )
        found[it.name] = it
    return found


def import_file(path: Path) -> ModuleType:
    """The file as a module, which can import its neighbours, here and in Spark's workers."""
    path = path.resolve()
    directory = str(path.parent)
    if directory not in sys.path:
        sys.path.insert(0, directory)
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if directory not in inherited:
        os.environ["PYTHONPATH"] = os.pathsep.join([directory, *filter(None, inherited)])
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not a Python file")
    module = module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(f"{place_of(error, path)}: {reason_of(error)}") from error
    send_by_value(module)
    return module


def place_of(error: Exception, path: Path) -> str:
    """The line of an error: the last one in this file, if there is one."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}"
    lines = [it.lineno for it in extract_tb(error.__traceback__) if it.filename == str(path)]
    return f"{path}, line {lines[-1]}" if lines else str(path)


def reason_of(error: Exception) -> str:
    if isinstance(error, MillstreamError):
        return str(error)
    if "SESSION_OR_CONTEXT_NOT_EXISTS" in str(error):
        return (
            "a Column needs a Spark session, and there is none while a file is loaded: write it as "
            'text, like last="max(at)" instead of last=F.max("at"), or define it inside the '
            "pipeline's function"
        )
    return f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}"


def send_by_value(module: ModuleType) -> None:
    """Pickle the functions of the module, and of the modules next to it that it imported, by value:
    the workers of a cluster do not have these files."""
    from pyspark import cloudpickle

    for it in (module, *neighbours(Path(str(module.__file__)).parent)):
        cloudpickle.register_pickle_by_value(it)  # type: ignore[no-untyped-call]


def neighbours(directory: Path) -> list[ModuleType]:
    """The modules and packages that were imported out of a directory."""
    found = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        places = (directory / f"{name}.py", directory / name / "__init__.py")
        if file is not None and Path(file) in places:
            found.append(module)
    return found
