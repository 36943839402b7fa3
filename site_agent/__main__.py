"""Starts the program `site-agent`, also as `python -m site_agent`."""

from __future__ import annotations

from site_agent.site_cli import main

if __name__ == "__main__":
    main()
