"""Starts the program `pki`, also as `python -m pki`."""

from __future__ import annotations

from pki.pki_cli import main

if __name__ == "__main__":
    main()
