#!/usr/bin/env bash
# Rehearses a federation of hospitals on this machine: makes an environment in the checkout where
# there is none, then starts the real programs. Paths among the options are relative to the folder
# where you are. Example: deploy/quickstart.sh --rounds 20 --json figures.json

set -euo pipefail

checkout=$(dirname -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")")
unset PYTHONHOME PYTHONPATH
# shellcheck source=deploy/environment.sh
source "$checkout/deploy/environment.sh"

# Help needs no environment.
for word in "$@"; do
    if [[ $word == --help ]]; then
        cat -- "$checkout/deploy/quickstart/help.txt"
        exit 0
    fi
done
make_environment quickstart "$checkout" "$checkout/.venv" site
exec "$checkout/.venv/bin/python" "$checkout/deploy/quickstart" "$@"
