"""Runs the gate process as a service: starts and stops the three processes, enrols, and reports the site's state."""
