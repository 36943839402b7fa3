"""The process with the network. It stores the TLS key, connects and relays. It reads no message of a run."""
