#!/usr/bin/env bash
# Runs every check in an environment of its own: lint, format, types, tests. Arguments go to pytest,
# with paths relative to the checkout; without any, everything but the slow proofs runs.
#   tests/run.sh                     what every change has to pass
#   tests/run.sh -m slow             the proofs that take minutes
#   tests/run.sh tests/pki -k chain  a few tests

set -euo pipefail

checkout=$(dirname -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")")
# Without bytecode each program that a test starts would compile the house again.
unset PYTHONHOME PYTHONPATH PYTHONDONTWRITEBYTECODE
# shellcheck source=deploy/environment.sh
source "$checkout/deploy/environment.sh"

make_environment tests "$checkout" "$checkout/.venv-tests" site,imaging,formats,databases,onnx,benchmarks,development
cd -- "$checkout"
python=$checkout/.venv-tests/bin/python
failed=()

# check NAME COMMAND...: goes on after a failure, so that one run shows everything.
check() {
    local name=$1
    shift
    echo "== $name"
    "$@" </dev/null || failed+=("$name")
}

check "ruff check" "$python" -m ruff check .
check "ruff format" "$python" -m ruff format --check .
check "mypy" "$python" -m mypy
# Two at once: the suite is made for two cores. --dist worksteal keeps both busy to the end.
run_tests() {
    "$python" -m pytest -m "not slow" --numprocesses 2 --dist worksteal "$@" && return
    # A test of real processes can miss its time on a busy machine. A second failure counts, and both are shown.
    echo "== pytest: what failed, once more"
    "$python" -m pytest --last-failed --last-failed-no-failures none --numprocesses 0 -m "not slow" "$@"
}
check "pytest" run_tests "$@"

if ((${#failed[@]})); then
    printf 'tests: failed: %s\n' "$(IFS=,; echo "${failed[*]}")" >&2
    exit 1
fi
