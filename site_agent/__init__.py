"""Contains the programs of one hospital: agent (network), gate (keys), trainer (patients' data) and desk (commands)."""

from host.own_packages import require_own_packages

require_own_packages()
