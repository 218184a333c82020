"""Tables of SQLite and PostgreSQL: columns, types and the statements that apply rows to them.

The stores of pipelines and the sinks of `millstream connect` both write through these modules.
Rows are Arrow columns. Which rows are written, and how progress is kept with them, is up to the
caller.
"""
