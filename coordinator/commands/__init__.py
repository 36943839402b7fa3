"""The commands of `coordinator`, a file for each subject; `coordinator/cli.py` joins them."""
