#!/usr/bin/env bash
# Builds what an institution installs: Debian packages and a bundle of wheels. It downloads what constraints.txt pins;
# the packages install without internet. deploy/packages/build.sh --help shows the options.

set -euo pipefail

checkout=$(dirname -- "$(dirname -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")")")
unset PYTHONHOME PYTHONPATH
# shellcheck source=deploy/environment.sh
source "$checkout/deploy/environment.sh"

# The packages carry modules compiled for this Python, so each Debian builds its own.
python=$(suitable_python build.sh) || exit 1
command -v dpkg-deb >/dev/null || fail build.sh "dpkg-deb is not on this computer." "Nothing was built." \
    "Build on Debian or Ubuntu, or install the package dpkg."

tools=$(mktemp -d)
trap 'rm -rf -- "$tools"' EXIT
"$python" -m venv -- "$tools/venv"
"$tools/venv/bin/python" -P "$checkout/deploy/packages/build.py" "$@"
