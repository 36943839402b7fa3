"""Identities in global-layers: the federation's authority, its register of sites, and every kind of key."""

from host.own_packages import require_own_packages

require_own_packages()
