"""Computes the numbers of a statistics plan at a site. No library for training is loaded."""
