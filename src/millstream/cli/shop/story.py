"""Timeline of the demo's shop. `screen` renders it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rich.text import Text

from millstream.cli.failures import CommandFailed
from millstream.cli.shop.audit import Verdict
from millstream.cli.shop.browsing import PAGE, open_browser
from millstream.cli.shop.catalogue import CatalogueLook
from millstream.cli.shop.pipelines import sales
from millstream.cli.shop.run import ShopRun
from millstream.cli.shop.watching import ADDED, ALL, FIRST, SECOND, Look

TICK_S = 0.25
LOOK_EVERY_S = 1.0
DEAD_FOR_S = 2.0  # how long the pipelines stay dead, so that a person sees it
PATIENCE_S = 240.0  # with whatever must come, on a slow machine
SHOWN_SECONDS = 30

ORDERS, VIEWS = "orders", "views"
SERIES = (ORDERS, VIEWS, *(it.identity for it in ALL))


@dataclass
class Rates:
    """What customers send and pipelines read, a second, over the last half minute."""

    history: dict[str, deque[float]] = field(
        default_factory=lambda: {it: deque(maxlen=SHOWN_SECONDS) for it in SERIES}
    )
    _counts: dict[str, int] = field(default_factory=dict)
    _at: float = 0.0

    def take(self, now: float, counts: dict[str, int]) -> None:
        if self._counts:
            for name, count in counts.items():
                rate = (count - self._counts.get(name, count)) / max(now - self._at, TICK_S)
                self.history[name].append(max(rate, 0.0))
        self._at, self._counts = now, counts

    def of(self, name: str) -> float:
        """The mean of the last seconds: batches come by fits and starts."""
        recent = list(self.history[name])[-3:]
        return sum(recent) / len(recent) if recent else 0.0


@dataclass
class Story:
    """The run's acts in order; advance it by iterating, look at it in between."""

    run: ShopRun
    seconds: float
    opens_browser: bool = False
    began: float = field(default_factory=time.monotonic)
    state: Text = field(default_factory=lambda: Text("opening", style="yellow"))
    events: list[Text] = field(default_factory=list)
    look: Look = field(default_factory=Look)
    catalogue: CatalogueLook = field(default_factory=CatalogueLook)
    rates: Rates = field(default_factory=Rates)
    verdict: Verdict | None = None
    _next_look: float = 0.0

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.began

    def tell(self, text: str, style: str = "") -> None:
        stamp = f"{self.elapsed_s:5.1f} s  "
        self.events.append(Text.assemble((stamp, "dim"), (text, style)))

    def acts(self) -> Iterator[None]:
        """Everything that happens; yields whenever there is something new to see."""
        self.run.open()
        self.tell(f"the shop is open; its broker is {self.run.broker.address}")
        self.show_console()
        yield from self.start_pipelines(f"shop.py:{','.join(it.name for it in FIRST)}")
        self.start_catalogue()
        yield from self.pass_time(self.seconds / 2)
        yield from self.open_catalogue()
        yield from self.crash()
        yield from self.deploy_second()
        yield from self.start_pipelines("shop.py")
        self.restart_catalogue()
        self.run.start_history()
        yield from self.switch_versions()
        yield from self.pass_time(self.seconds / 2)
        yield from self.close()
        yield from self.audit()

    def show_console(self) -> None:
        if self.run.console is None:
            self.tell("without a console: pip install 'millstream[console]'", "yellow")
            return
        url = f"{self.run.console.url}{PAGE}"
        opened = self.opens_browser and open_browser(url)
        self.tell(f"{'a browser shows' if opened else 'watch'} it at {url}", "bold cyan")

    def start_pipelines(self, target: str) -> Iterator[None]:
        self.state = Text("starting Spark", style="bold yellow")
        pid, began, before = self.run.start_pipelines(target), time.monotonic(), self.look
        self.tell(f"millstream run {target}, process {pid}")
        yield from self.wait_for(
            lambda: self.run.watcher.look().has_passed(before), "the first batches"
        )
        self.tell(f"batches are coming after {time.monotonic() - began:.1f} s", "green")
        self.state = Text("running", style="bold green")

    def start_catalogue(self) -> None:
        """After the first batches: Spark needs the processor until then."""
        catalogue = self.run.catalogue
        catalogue.start()
        if catalogue.missing is not None:
            self.tell(f"without a database and its search index: {catalogue.missing}", "yellow")

    def open_catalogue(self) -> Iterator[None]:
        catalogue = self.run.catalogue
        if catalogue.missing is None:
            yield from self.wait_for(lambda: catalogue.is_open, "the catalogue")
            self.tell("products are in PostgreSQL; a search index and a table follow", "green")

    def restart_catalogue(self) -> None:
        if self.run.catalogue.missing is None:
            self.run.catalogue.restart()

    def crash(self) -> Iterator[None]:
        left_open = self.run.kill_pipelines()
        killed = self.run.catalogue.kill()
        self.state = Text(" KILLED ", style="bold white on red")
        transactions = "a transaction" if left_open == 1 else f"{left_open} transactions"
        also = f", also of the {' and the '.join(killed)}" if killed else ""
        self.tell(f"kill -9, with {transactions} open{also}; the customers go on", "bold red")
        yield from self.pass_time(DEAD_FOR_S)

    def deploy_second(self) -> Iterator[None]:
        """While version 1 of sales is dead: its table becomes that of a version among others."""
        self.run.deploy_second()
        yield from self.wait_for(lambda: self.run.is_second_deployed, "version 2 of sales")
        self.run.watcher.watched = ALL
        self.tell("millstream deploy sales_2.py:sales: version 2, from the beginning")
        added = " and ".join(it.name for it in ADDED)
        self.tell(f"{added} are new in shop.py, and also read from the beginning")

    def switch_versions(self) -> Iterator[None]:
        """Version 2 has read everything: compare both, and move the readers to it."""
        yield from self.wait_for(lambda: self.has_caught_up, "the history, by version 2 of sales")
        compared = self.run.compare_versions()
        yield from self.wait_for(lambda: compared.poll() is not None, "the comparison of versions")
        if compared.returncode:
            raise CommandFailed(f"versions 1 and 2 of sales differ: {self.run.last_words('diff')}")
        switched = self.run.switch_versions()
        yield from self.wait_for(lambda: switched.poll() is not None, "version 2 of sales")
        if switched.returncode:
            raise CommandFailed(f"the switch failed: {self.run.last_words('switch')}")
        self.tell("millstream diff sales 1 2: equal rows; millstream switch sales 2", "green")

    @property
    def has_caught_up(self) -> bool:
        """Whether version 2 of sales has read what was there when it was deployed, and more."""
        done = {it.pipeline: it.done for it in self.look.positions}
        return 0 < done.get(sales.identity, 0) <= done.get(SECOND.identity, 0)

    def close(self) -> Iterator[None]:
        self.state = Text("closing", style="bold cyan")
        self.run.customers.stop()
        self.run.catalogue.close()
        ledger = self.run.customers.ledger
        self.tell(f"the shop closes with {len(ledger.orders):,} orders; the rest is read")
        self.run.compute_history()
        self.look_around()
        yield from self.wait_for(lambda: self.look.lag == 0, "the end of the topics")
        self.run.stop_pipelines()
        if self.run.catalogue.missing is None:
            yield from self.wait_for(self.run.catalogue.has_followed, "the end of the catalogue")

    def audit(self) -> Iterator[None]:
        self.state = Text("auditing", style="bold cyan")
        self.tell("comparing with a batch over the log, by the same functions", "bold")
        yield from self.wait_for(lambda: self.run.has_history, "the batch over the log")
        self.verdict = self.run.audit()

    # Time, and what is seen as it passes

    def pass_time(self, duration_s: float) -> Iterator[None]:
        until = time.monotonic() + duration_s
        while time.monotonic() < until:
            yield from self.tick()

    def wait_for(self, come: Callable[[], bool], what: str) -> Iterator[None]:
        deadline = time.monotonic() + PATIENCE_S
        while not come():
            if time.monotonic() > deadline:
                words = self.run.last_words("run")
                raise CommandFailed(f"{what} did not come in {PATIENCE_S:.0f} s: {words}")
            yield from self.tick()

    def tick(self) -> Iterator[None]:
        time.sleep(TICK_S)
        self.run.check_pipelines()
        if time.monotonic() >= self._next_look:
            self.look_around()
        yield

    def look_around(self) -> None:
        self._next_look = time.monotonic() + LOOK_EVERY_S
        self.look = self.run.watcher.look()
        if self.run.catalogue.missing is None and self.run.catalogue.is_open:
            self.catalogue = self.run.catalogue.look()
        ledger = self.run.customers.ledger
        sent = {ORDERS: len(ledger.orders), VIEWS: ledger.views}
        self.rates.take(
            time.monotonic(), sent | {it.pipeline: it.done for it in self.look.positions}
        )
