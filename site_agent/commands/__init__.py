"""Contains the commands of `site-agent`, one file for each subject. site_cli.py joins these commands."""
