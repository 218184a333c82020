"""Versions of a pipeline side by side: deployed, compared, switched, rolled back, removed."""
