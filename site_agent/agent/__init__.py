"""The process with the network. It keeps the TLS key, connects and relays, and reads no message of a run."""
