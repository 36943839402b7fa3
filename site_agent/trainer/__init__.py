"""The process with the patients: its part in each round."""
