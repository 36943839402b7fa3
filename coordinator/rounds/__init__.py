"""Contains the functions that decide the next step of a run, and the code that carries out these decisions."""
