"""The commands of `coordinator`, a file for each subject; `coordinator/coordinator_cli.py` joins them."""
