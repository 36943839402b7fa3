"""What the coordinator keeps on disk: journal, snapshots, records."""
