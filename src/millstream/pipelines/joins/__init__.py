"""Joins of streams and tables. Each module opens with what its join does to which rows.

as_of.py         the version that was valid at the time of the event

matching.py      which rows have the same key, and which of them is the newest (pure)
tidying.py       tables that only grow, made small again now and then (pure)
frames.py        what these joins check of DataFrames before anything runs
"""
