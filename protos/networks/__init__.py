"""The networks that a plan may name, one file each: its record, and every tensor it consists of."""
