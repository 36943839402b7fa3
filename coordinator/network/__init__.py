"""Accepts the network connections of sites, and exchanges messages with these sites."""
