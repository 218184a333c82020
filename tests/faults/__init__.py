"""Faults on the real server: no flush, kill -9, full disks, hostile bytes, fuzz."""
