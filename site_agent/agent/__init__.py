"""Runs the process with the network. It has the TLS key, connects and relays, and decodes no message of a run."""
