#!/usr/bin/env bash
# lifelines 0.30.3: an end of follow-up after 11 April 2262, such as 9999-12-31 of a patient who is still in care, or the
# text NaT, is an event ages before the start (datetimes_to_durations); a missing end is censored. Nothing is said.
source "$(dirname -- "${BASH_SOURCE[0]}")/observe.sh"
observe "2020-03-01: 60.0 event
none: 366.0 censored
9999-12-31: -9.223372036854776e+18 event
2262-04-12: -9.223372036854776e+18 event
NaT: -9.223372036854776e+18 event" numpy==2.4.6 pandas==2.3.3 scipy==1.17.1 lifelines==0.30.3 <<'PY'
from lifelines.utils import datetimes_to_durations

for end in ("2020-03-01", None, "9999-12-31", "2262-04-12", "NaT"):
    (length,), (is_event,) = datetimes_to_durations(["2020-01-01"], [end], fill_date="2021-01-01")
    print(f"{end or 'none'}:", float(length), "event" if is_event else "censored")
PY
