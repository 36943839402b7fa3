#!/usr/bin/env bash
# Builds what an institution installs: Debian packages and a bundle of wheels. It downloads what constraints.txt pins;
# the packages install without internet. deploy/packages/build.sh --help shows the options.

set -euo pipefail

checkout=$(dirname -- "$(dirname -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")")")
unset PYTHONHOME PYTHONPATH
# shellcheck source=deploy/environment.sh
source "$checkout/deploy/environment.sh"

# The packages carry modules compiled for the Python of Debian 12, so no other version can build them.
python=$(PYTHON=${PYTHON:-python3.11} suitable_python build.sh) || exit 1
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || fail build.sh \
    "$python is not Python 3.11, which the packages are for." "Nothing was built." \
    "Install Python 3.11, or name it: PYTHON=/path/to/python3.11 $0"
command -v dpkg-deb >/dev/null || fail build.sh "dpkg-deb is not on this computer." "Nothing was built." \
    "Build on Debian or Ubuntu, or install the package dpkg."

tools=$(mktemp -d)
trap 'rm -rf -- "$tools"' EXIT
"$python" -m venv -- "$tools/venv"
"$tools/venv/bin/python" -P "$checkout/deploy/packages/build.py" "$@"
