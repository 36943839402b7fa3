"""Contains the commands of `coordinator`, one file for each subject. `coordinator/coordinator_cli.py` joins them."""
