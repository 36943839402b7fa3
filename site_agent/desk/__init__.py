"""Contains what people do before and after a run: describe, check, review, report, predict and export."""
