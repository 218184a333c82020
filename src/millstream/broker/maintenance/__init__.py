"""Periodic jobs: retention, checkpoints, compaction."""
