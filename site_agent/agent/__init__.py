"""The process with the network: connect, enrol, relay."""
