"""Runs the gate process, which has the keys of a site and checks everything that the site sends."""
