"""Contains the programs of one hospital: agent (network), gate (keys), trainer (patients' data) and desk (commands)."""
