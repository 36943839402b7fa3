#!/usr/bin/env bash
# nibabel 5.4.2: NaN voxels become an ordinary number when an image is saved with an integer type: zero, although all
# other voxels keep their values to within rounding. With float32 they stay NaN.
source "$(dirname -- "${BASH_SOURCE[0]}")/observe.sh"
observe "int16 100 200 0 300 400
uint8 100 199 0 300 400
float32 100 200 nan 300 400" numpy==2.4.6 nibabel==5.4.2 <<'PY'
import nibabel
import numpy as np

voxels = np.array([100, 200, np.nan, 300, 400]).reshape(5, 1, 1)
for kind in (np.int16, np.uint8, np.float32):
    image = nibabel.Nifti1Image(voxels, np.eye(4))
    image.set_data_dtype(kind)
    nibabel.save(image, "image.nii")
    print(kind.__name__, *(f"{value:.0f}" for value in nibabel.load("image.nii").get_fdata().ravel()))
PY
