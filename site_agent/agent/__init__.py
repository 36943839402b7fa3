"""Runs the agent, the only process of a site with network access.

The agent has the TLS key and relays messages without decoding them.
"""
