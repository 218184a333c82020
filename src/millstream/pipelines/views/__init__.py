"""Operators of maintained views: rows with weights in, rows with weights out.

    from millstream.pipelines import views

    orders.transform(views.aggregate, key="user", spent="sum(amount)", orders="count(*)")
    orders.transform(views.distinct, key=["user", "country"])
    totals.transform(views.top, 10, by="spent")

A row with `_weight` 1 is added, one with -1 is removed. The sum of all that an operator emits is
its result for the sum of all that it got, after every batch: rows that leave are taken back. So a
plain `where` behind `aggregate` is a HAVING that removes rows which no longer qualify. `changes`
and `table_join` of `millstream.pipelines.joins` produce such rows too.

    weights.py     the input of an operator: with weights, whatever it is
    aggregate.py   groups: count, sum, avg, min, max, count(distinct); distinct rows
    top.py         the first rows of each group, with their rank
"""

from millstream.pipelines.views.aggregate import aggregate, distinct
from millstream.pipelines.views.top import top

__all__ = ["aggregate", "distinct", "top"]
