"""Settings of the allocator do no harm; `tests/cli/test_beside.py` measures what they save."""

from __future__ import annotations

import threading

from millstream.console.memory import give_back, share_arenas


def test_threads_go_on_after_memory_was_given_back() -> None:
    share_arenas()
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(len(bytes(10**6)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    give_back()
    for thread in threads:
        thread.join()
    assert found == [10**6] * 4
