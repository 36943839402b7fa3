#!/usr/bin/env bash
# pyEDFlib 0.1.42: a missing sample (NaN) is written as the physical minimum of its channel, without a word. A gap in an
# arterial pressure becomes 0 mmHg, and a gap in a temperature its lowest value.
source "$(dirname -- "${BASH_SOURCE[0]}")/observe.sh"
observe "0 to 300: 120 -> 120, nan -> 0
-40 to 40: 37 -> 37, nan -> -40" numpy==2.4.6 pyedflib==0.1.42 <<'PY'
import numpy as np
import pyedflib

for low, high, value in ((0, 300, 120.0), (-40, 40, 37.0)):
    writer = pyedflib.EdfWriter("signal.edf", 1, file_type=pyedflib.FILETYPE_EDFPLUS)
    channel = {"label": "signal", "dimension": "unit", "sample_frequency": 2, "physical_min": low, "physical_max": high}
    writer.setSignalHeader(0, {**channel, "digital_min": -32768, "digital_max": 32767, "prefilter": "", "transducer": ""})
    writer.writeSamples([np.array([value, np.nan])])
    writer.close()
    with pyedflib.EdfReader("signal.edf") as reader:
        there, missing = reader.readSignal(0)
    print(f"{low} to {high}: {value:g} -> {there:.0f}, nan -> {missing:.0f}")
PY
