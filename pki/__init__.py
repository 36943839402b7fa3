"""Manages identities for global-layers: the federation's certificate authority, its list of sites, and all keys."""

from host.own_packages import require_own_packages

require_own_packages()
