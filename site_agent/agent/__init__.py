"""Runs the process with network access. It has the TLS key, relays messages, and decodes no message of a run."""
