"""Defines what the coordinator and the sites of global-layers must compute in exactly the same way.

No module here opens a socket, reads a clock, keeps a secret or loads PyTorch.
"""
