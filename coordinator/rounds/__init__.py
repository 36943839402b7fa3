"""One run as a pure state machine, and what carries its decisions out."""
