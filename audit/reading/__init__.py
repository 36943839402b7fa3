"""Verifies, shows and exports a log. The programs can write a log without this folder."""
