"""Provides what programs need of the local computer: durable files, backups, checks, pages, messages."""
