"""The arithmetic of a statistics plan: what a site computes from its rows, and what the announced sums print."""
