"""Manages the identities of global-layers: the federation's authority, its register of sites, and all keys."""

from host.own_packages import require_own_packages

require_own_packages()
