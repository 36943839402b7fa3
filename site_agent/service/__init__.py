"""Runs the gate process of a site: starts agent and trainer, gets the certificate, and reports the site's state."""
