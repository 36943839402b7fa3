#!/usr/bin/env bash
# nibabel 5.4.2 and SimpleITK 2.5.7: of a volume whose header gives distances in metres, nibabel returns the numbers of the
# file and SimpleITK millimetres. Guess: both return the numbers of the file.
source "$(dirname -- "${BASH_SOURCE[0]}")/observe.sh"
observe "meter: nibabel 0.001, SimpleITK 1.0
mm: nibabel 1.0, SimpleITK 1.0
micron: nibabel 1000.0, SimpleITK 1.0" numpy==2.4.6 nibabel==5.4.2 simpleitk==2.5.7 <<'PY'
import nibabel
import numpy as np
import SimpleITK

for unit, size in (("meter", 0.001), ("mm", 1.0), ("micron", 1000.0)):
    image = nibabel.Nifti1Image(np.zeros((2, 3, 4), np.float32), np.diag([size, size, size, 1.0]))
    image.header.set_xyzt_units(unit)
    nibabel.save(image, "volume.nii")
    zoom = float(nibabel.load("volume.nii").header.get_zooms()[0])
    print(f"{unit}: nibabel {round(zoom, 6)}, SimpleITK {SimpleITK.ReadImage('volume.nii').GetSpacing()[0]:.1f}")
PY
