"""The computer that a program runs on: durable files, backups, checks, local pages, messages for operators."""
