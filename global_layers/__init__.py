"""Simulates a federation of data frames in one process. Start with `global_layers.simulation.simulate`."""
