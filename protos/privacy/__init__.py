"""Differential privacy, computed alike by both programs: the noise that a site adds, and its promise."""
