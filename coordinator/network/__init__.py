"""Accepts connections of sites, and sends and receives their messages."""
