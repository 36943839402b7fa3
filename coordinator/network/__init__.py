"""Connections to the coordinator: who may connect, and how bytes are sent and received."""
