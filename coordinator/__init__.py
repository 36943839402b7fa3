"""Contains the program `coordinator`, which sums the sites' contributions in rounds and updates the shared model."""

from host.own_packages import require_own_packages

require_own_packages()
