"""The commands of `site-agent`, a file for each subject; `site_agent/cli.py` joins them."""
