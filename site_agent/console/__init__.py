"""Contains the console: local web pages on which people read and decide. Each button runs a command of `site-agent`."""
