"""Verifies, shows and exports an audit log. The programs can write an audit log without this folder."""
