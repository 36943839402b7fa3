"""Contains the tools for the coordinator's operator: status, web pages, metrics, `doctor` and the audit log."""
