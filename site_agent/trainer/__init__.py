"""The process at a site that reads patients' data and trains. This process has no network access."""
