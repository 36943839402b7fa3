"""Contains the trainer: the process of a site that reads patients' data and trains. It has no network access."""
