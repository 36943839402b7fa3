#!/usr/bin/env bash
# ucumvert 0.3.2: some units of its own table of definitions are read as others. A dietary Calorie is a thousandth of what
# the table says, the field of view of 100 units is one unit, a gram percent is a mass and no concentration, and a minute
# of arc is a minute of time.
source "$(dirname -- "${BASH_SOURCE[0]}")/observe.sh"
observe "[Cal] / kcal: 0.001 (table: 1 kcal_th)
[LPF] / 1: 1 (table: 100 1)
g%: [mass] (table: 1 g/dl)
': [time] (table: 1 deg/60)" numpy==2.4.6 pint==0.25.3 lark==1.3.1 ucumvert==0.3.2 <<'PY'
import pathlib
import xml.etree.ElementTree as Tree

import ucumvert

registry = ucumvert.PintUcumRegistry()
table = Tree.parse(next(pathlib.Path(ucumvert.__file__).parent.rglob("ucum-essence.xml"))).getroot()
units = {unit.get("Code"): unit.find("{*}value") for unit in table.iterfind("{*}unit")}


def defined(code):
    return f"(table: {float(units[code].get('value')):g} {units[code].get('Unit')})"


for code, other in (("[Cal]", "kcal"), ("[LPF]", "1")):
    print(f"{code} / {other}: {(1 * registry.from_ucum(code)).to(registry.from_ucum(other)).magnitude:g} {defined(code)}")
for code in ("g%", "'"):
    print(f"{code}: {(1 * registry.from_ucum(code)).dimensionality} {defined(code)}")
PY
