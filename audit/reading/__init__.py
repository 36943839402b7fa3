"""Reading a log: verify, show and export it. The programs can write a log without this folder."""
