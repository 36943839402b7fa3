"""The tamper-evident log: write, sign, cosign, verify, read."""
