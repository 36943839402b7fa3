"""Contains the operator's tools: status, pages, metrics, doctor and log."""
