"""Reading a log: verify, show and export it. Writing a log needs nothing of this folder."""
