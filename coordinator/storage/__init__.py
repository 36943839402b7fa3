"""Stores the coordinator's files: journal, snapshots and records of runs."""
