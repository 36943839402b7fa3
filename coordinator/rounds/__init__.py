"""Contains one run as a pure state machine, and the code that carries out the decisions of the state machine."""
