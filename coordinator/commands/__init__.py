"""Contains the commands of `coordinator`, one file for each subject. coordinator_cli.py joins these commands."""
