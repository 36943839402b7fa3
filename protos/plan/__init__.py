"""What all sites approve: the plan, its method, its networks, and what may travel in a round."""
