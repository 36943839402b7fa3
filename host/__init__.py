"""Functions for the local computer: durable files, backups, checks, local pages, messages for operators."""
