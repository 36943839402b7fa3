"""Manages identities for global-layers: the federation's certificate authority, its list of sites, and all keys."""
