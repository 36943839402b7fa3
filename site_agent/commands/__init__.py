"""Contains the commands of `site-agent`, one file for each subject. `site_agent/site_cli.py` joins them."""
