"""Stores the coordinator's files: the journal, the snapshots and the final record of each run."""
