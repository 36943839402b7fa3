"""This computer, for global-layers: durable files, backups, checks, local pages, messages for operators."""
