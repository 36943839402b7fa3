"""Encodes numbers as integers, divides vectors into chunks, and adds the integers of all sites."""
