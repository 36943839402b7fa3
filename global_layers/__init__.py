"""The researcher's door: a federation of data frames in one process; start with `global_layers.simulation.simulate`."""
