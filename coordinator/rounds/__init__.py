"""Contains the state machine of a run, as pure functions, and the code that carries out its decisions."""
