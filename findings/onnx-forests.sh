#!/usr/bin/env bash
# skl2onnx 1.20.0: a random forest that scikit-learn trained with missing numbers, and boosted trees with a column of codes,
# answer otherwise as ONNX, without a word. Boosted trees with missing numbers are right. Guess: equal, or refused.
source "$(dirname -- "${BASH_SOURCE[0]}")/observe.sh"
observe "forest, missing numbers: 24 of 300 decisions differ
boosted trees, missing numbers: 0 of 300 decisions differ
boosted trees, a column of codes: 90 of 300 decisions differ" numpy==2.4.6 scipy==1.17.1 scikit-learn==1.9.1 onnx==1.23.2 \
    onnxruntime==1.32.0 skl2onnx==1.20.0 protobuf==6.33.6 <<'PY'
import numpy as np
import onnxruntime
from skl2onnx import to_onnx
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier

generator = np.random.default_rng(0)
numbers = generator.normal(size=(300, 3)).astype(np.float32)
numbers[generator.random((300, 3)) < 0.1] = np.nan
outcome = np.nan_to_num(numbers[:, 0]) + generator.normal(size=300) * 0.5 > 0
codes = generator.choice([1, 2, 3, 7], size=(300, 1)).astype(np.float32)
for name, model, columns in (
    ("forest, missing numbers", RandomForestClassifier(20, random_state=0), numbers),
    ("boosted trees, missing numbers", HistGradientBoostingClassifier(max_iter=20), numbers),
    ("boosted trees, a column of codes", HistGradientBoostingClassifier(max_iter=20, categorical_features=[0]), codes),
):
    model.fit(columns, outcome.astype(int))
    session = onnxruntime.InferenceSession(to_onnx(model, columns[:1]).SerializeToString())
    differ = session.run(None, {session.get_inputs()[0].name: columns})[0] != model.predict(columns)
    print(f"{name}: {differ.sum()} of 300 decisions differ")
PY
