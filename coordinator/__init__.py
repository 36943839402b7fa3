"""Contains the program `coordinator`, which sums the sites' contributions in rounds and updates the shared model."""
