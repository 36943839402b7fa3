"""Contains the commands of the program `site-agent`, one file per subject. site_cli.py combines these files."""
