#!/usr/bin/env bash
# heartpy 1.2.7: the sampling rate from time stamps divides the number of samples, not of intervals, by the time between the
# first and the last. A recording that passes midnight has a negative rate.
source "$(dirname -- "${BASH_SOURCE[0]}")/observe.sh"
observe "every 10 ms, 4 samples: 133.33 Hz
every 10 ms, 100 samples: 101.01 Hz
every second, 3 samples: 1.50 Hz
every second, past midnight: negative" numpy==1.26.4 scipy==1.17.1 matplotlib==3.11.2 setuptools==65.5.0 heartpy==1.2.7 <<'PY'
from heartpy import get_samplerate_datetime, get_samplerate_mstimer

for samples in (4, 100):
    print(f"every 10 ms, {samples} samples: {get_samplerate_mstimer([10 * place for place in range(samples)]):.2f} Hz")
times = [f"10:00:0{second}.0" for second in range(3)]
print(f"every second, 3 samples: {get_samplerate_datetime(times, timeformat='%H:%M:%S.%f'):.2f} Hz")
times = ["23:59:59.0", "00:00:00.0", "00:00:01.0"]
print("every second, past midnight:", "negative" if get_samplerate_datetime(times, timeformat="%H:%M:%S.%f") < 0 else "right")
PY
