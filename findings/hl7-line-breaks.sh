#!/usr/bin/env bash
# hl7apy 1.3.5: parsing a message and writing it again changes formatting commands inside text. The line break \.br\ and
# characters by number (\X0D\) become literal text, so the next reader joins two results to one line. Highlighting (\H\)
# and escaped separators (\T\) stay.
source "$(dirname -- "${BASH_SOURCE[0]}")/observe.sh"
observe 'no growth after 1\.br\2 days -> no growth after 1\E\.br\E\2 days
glucose 5\X0D\CRP 12 -> glucose 5\E\X0D\E\CRP 12
\H\high\N\ -> \H\high\N\
A\T\E -> A\T\E' hl7apy==1.3.5 <<'PY'
from hl7apy.parser import parse_segment

for text in (r"no growth after 1\.br\2 days", r"glucose 5\X0D\CRP 12", r"\H\high\N\ ".strip(), r"A\T\E"):
    segment = parse_segment(f"OBX|1|FT|NOTE||{text}||||||F", version="2.5")
    print(text, "->", segment.to_er7().split("|")[5])
PY
