"""The coordinator's files: journal, snapshots, records."""
