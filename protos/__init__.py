"""The contract of global-layers: what coordinator and site must agree on bit for bit.

No module here opens a socket, reads a clock, keeps a secret or loads PyTorch.
"""
