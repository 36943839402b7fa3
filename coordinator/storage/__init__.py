"""Stores the decisions about each run, its snapshots and its final record."""
