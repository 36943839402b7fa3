"""Numbers in messages: fixed point, chunks and sums."""
