"""Tests of the pages, each in a real browser."""
