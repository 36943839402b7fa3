"""Contains the commands of the program `coordinator`, one file per subject. coordinator_cli.py combines these files."""
