"""Make the virtual environment: `python3 tools/install.py .venv`. Plain Python, no imports.

Installs requirements.lock (hashes checked) and the package itself, editable, which compiles the
Cython extension. A second run with nothing changed does nothing.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON_MIN = (3, 11)
UV_VERSION = "0.13.7"
# Spark comes as source: to compress its 400 MB for a wheel that is opened at once takes half a
# minute. Our compiled parts are built side by side, without what only a debugger reads.
BUILDING = """\
[bdist_wheel]
compression = stored
[build_ext]
parallel = {cores}
"""
WITHOUT_DEBUGGING = "-g0"


def main(venv: Path) -> None:
    stamp = venv / ".millstream-installed"
    wanted = fingerprint()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    check_machine()
    python = venv / "bin" / "python"
    if not python.exists():
        say(f"making {venv} with Python {sys.version.split()[0]}")
        run(sys.executable, "-m", "venv", str(venv))
    uv = find_uv(venv)
    speed_up_building(venv)
    install = [uv, "pip", "install", "--python", str(python)]
    say("installing requirements.lock: Spark is 400 MB, it may take a few minutes")
    shown = [] if sys.stderr.isatty() else ["--quiet"]  # bars are for a terminal
    lock = str(ROOT / "requirements.lock")
    # Spark starts many small Python processes. Where nothing may be written when they import, each
    # would compile all of it again.
    run(*install, *shown, "--compile-bytecode", "--require-hashes", "--requirement", lock)
    say("building millstream, with its compiled parts")
    run(*install, "--quiet", "--no-build-isolation", "--no-deps", "--editable", str(ROOT))
    run(str(python), "-m", "compileall", "-q", str(ROOT / "src"))
    stamp.write_text(wanted)


def fingerprint() -> str:
    """Changes when the environment must be made anew or the extension compiled again."""
    digest = hashlib.sha256(sys.version.encode())
    sources = sorted((ROOT / "src").rglob("*.p[yx][xi]"))
    for path in [Path(__file__), ROOT / "pyproject.toml", ROOT / "requirements.lock", *sources]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def check_machine() -> None:
    """Say in one line what is missing, before a compiler says it in a hundred."""
    version = ".".join(map(str, sys.version_info[:2]))
    if sys.version_info < PYTHON_MIN:
        stop(f"this is Python {version}, 3.11 or newer is needed: make PYTHON=python3.11 ...")
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        stop("no C compiler: apt-get install build-essential, or xcode-select --install on macOS")
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        stop(f"no Python headers: apt-get install python{version}-dev")


def find_uv(venv: Path) -> str:
    """The uv on the path, or a pinned one, installed into the environment."""
    if on_path := shutil.which("uv"):
        return on_path
    own = venv / "bin" / "uv"
    if not own.exists():
        say(f"installing uv {UV_VERSION}")
        pip = [str(venv / "bin" / "python"), "-m", "pip"]
        if subprocess.run([*pip, "--version"], capture_output=True).returncode != 0:
            run(pip[0], "-m", "ensurepip")
        run(*pip, "install", "--quiet", "--disable-pip-version-check", f"uv=={UV_VERSION}")
    return str(own)


def speed_up_building(venv: Path) -> None:
    """For the builds of this process."""
    settings = venv / "building.cfg"
    settings.write_text(BUILDING.format(cores=os.cpu_count() or 1))
    os.environ["DIST_EXTRA_CONFIG"] = str(settings.resolve())
    flags = str(sysconfig.get_config_var("CFLAGS") or "")  # which those of the environment replace
    os.environ.setdefault("CFLAGS", f"{flags} {WITHOUT_DEBUGGING}")


def run(*command: str) -> None:
    if subprocess.run(command).returncode != 0:
        stop(f"failed: {' '.join(command)}")


def say(message: str) -> None:
    print(f"install: {message}", flush=True)


def stop(message: str) -> None:
    sys.exit(f"install: {message}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else ".venv"))
