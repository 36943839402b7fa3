"""Runs the gate process as a service: starts and stops agent and trainer, enrols, and reports the site's state."""
