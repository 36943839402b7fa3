"""Contains the console: web pages for people at a hospital. Each button on a page runs a command of `site-agent`."""
