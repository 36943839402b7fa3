"""What operators see and do: status, pages, metrics, doctor and log."""
