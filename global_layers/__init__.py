"""Simulates plans over data frames in one process. `simulation` compares methods."""

from global_layers.statistics_simulation import simulate as simulate
