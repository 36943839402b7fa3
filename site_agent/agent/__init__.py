"""The process with the network: it keeps the TLS key, connects and relays, and reads no message of a run."""
