"""Contains the work of people before and after a run: describe, check, review, report, predict, export and monitor."""
