"""Runs the agent, the process with network access.

The agent has the TLS key and relays messages without decoding them.
"""
