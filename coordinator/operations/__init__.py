"""The operator's tools: status, pages, metrics, doctor and log."""
