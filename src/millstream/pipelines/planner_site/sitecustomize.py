"""A Python process that Spark starts asks to be forked instead, from one that has all imports.

Python imports a module of this name, if there is one in its path, before it runs the program. If
there is a `process_server`, and it takes the program, that runs in a process forked there, with
our arguments, environment, directory and standard streams. We only wait until it has ended.
Otherwise the program runs here.

`python_processes` puts this directory into the path of the JVM's processes. What is imported here
is imported by each of them.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import Any

SERVER = "MILLSTREAM_PROCESS_SERVER"  # the path of its socket
HERE = os.path.dirname(__file__)  # noqa: PTH120 - pathlib would be imported in every process
STREAMS = (0, 1, 2)
PID = struct.Struct("!i")


def facts() -> list[Any]:
    """What a process cannot take over from another one: the server's must be the same."""
    seed = os.environ.get("PYTHONHASHSEED")
    return [sys.executable, sys.version, list(sys.flags), list(sys.warnoptions), seed]


def hand_over(path: str, arguments: list[str]) -> None:
    """Run `-m` with these arguments in a forked process and exit, unless there is none."""
    request = {
        "facts": facts(),
        "arguments": arguments,
        "path": sys.path,
        "directory": os.getcwd(),  # noqa: PTH109 - as above
        "environment": dict(os.environ),
    }
    # Spark may end us while the server answers: the signal waits until we know whom it is for.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.connect(path)
            socket.send_fds(server, [b"\n"], STREAMS)
            server.sendall(json.dumps(request).encode() + b"\n")
            answer = server.recv(PID.size, socket.MSG_WAITALL)
            if len(answer) == PID.size:
                follow(server, *PID.unpack(answer))
    except OSError:
        return  # there is no server
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])


def follow(server: socket.socket, pid: int) -> None:
    """Exit when the forked process does. Spark ends it by a signal to us, or by closing what it
    reads."""
    signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGTERM))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    nothing = os.open(os.devnull, os.O_RDWR)
    for it in STREAMS:
        os.dup2(nothing, it)
    server.recv(1)
    os._exit(0)


def run_hidden() -> None:
    """Run the module of this name that Python would have found without us."""
    sys.path[:] = [it for it in sys.path if it != HERE]
    found = PathFinder.find_spec("sitecustomize", sys.path)
    if found is not None and found.loader is not None:
        found.loader.exec_module(module_from_spec(found))


if __name__ == "sitecustomize":  # the server imports what both need to know
    if SERVER in os.environ and sys.orig_argv[1:2] == ["-m"]:
        hand_over(os.environ[SERVER], sys.orig_argv[2:])
    run_hidden()
