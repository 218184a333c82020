"""Nexmark: an auction house as a stream of events, and 23 questions about it."""
