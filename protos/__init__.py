"""The contract of global-layers: everything that coordinator and site must compute in exactly the same way.

No module here opens a socket, reads a clock, keeps a secret or loads PyTorch.
"""
