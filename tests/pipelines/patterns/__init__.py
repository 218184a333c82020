"""Tests of patterns over sequences."""
