"""The console: pages on this computer on which people read and decide. Each button runs a command of `site-agent`."""
