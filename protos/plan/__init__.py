"""Defines the plan that all sites approve: its method, its networks, and the numbers that sites send in a round."""
