"""The audit log of global-layers: write, sign, cosign, verify and read."""
