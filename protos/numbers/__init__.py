"""Numbers on the wire: fixed point, chunks, sums."""
