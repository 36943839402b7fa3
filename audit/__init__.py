"""Writes, signs, cosigns, verifies and reads the audit log of global-layers."""
