"""The process at a site that reads patients' data and trains. It has no network."""
