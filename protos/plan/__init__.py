"""The plan that all sites approve: its method, its networks, and the numbers that a round may send."""
