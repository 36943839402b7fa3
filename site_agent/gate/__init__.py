"""Runs the process with the keys: policy, approvals, limits, encoding, masks and audit log."""
