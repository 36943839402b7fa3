"""The commands of `site-agent`, a file for each subject; `site_agent/site_cli.py` joins them."""
