"""Maintained views, as readers use them: without Spark, in SQLite or PostgreSQL.

    from millstream.views import open_views

    with open_views("sqlite:///shop.db", "shop").read(at_least=message) as v:
        v["by_user"].get("ada")

Pipelines write views (`pipelines/spec.py`, `pipelines/views`); this package has what is in the
store beside the rows, and reads it.

    spec.py         stamps, and what is listed about a view
    stamping.py     the writer's side: listing views, stamping batches
    generations.py  other views for a query, built beside those that readers read
    history.py      rows as they were at the last stamps
    relations.py    SQL of a view at a stamp
    cuts.py         stamps of several queries that stand for the same records
    positions.py    what a reader asks the views to have seen
    values.py       keys and cells
    databases.py    snapshots and limits in SQLite and PostgreSQL
    reading.py      `open_views`
    requests.py     requests over HTTP
    events.py       changes as server-sent events
    serving.py      the HTTP server
"""

from millstream.views.reading import Snapshot, View, Views, open_views
from millstream.views.spec import Stamp

__all__ = ["Snapshot", "Stamp", "View", "Views", "open_views"]
