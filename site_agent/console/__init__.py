"""The console: pages on this computer on which people read and decide. Every act is a command, which it runs."""
