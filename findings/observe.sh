# Read by each finding. observe EXPECTED PACKAGE...: installs the pinned packages in a temporary folder, runs the Python
# program on standard input there, prints what it prints, and fails if that is not EXPECTED.
set -euo pipefail

observe() {
    local expected=$1 folder seen
    shift
    folder=$(mktemp -d)
    # shellcheck disable=SC2064  # the folder of now
    trap "rm -rf -- '$folder'" EXIT
    python3 -m venv "$folder/environment"
    "$folder/environment/bin/pip" install --quiet --disable-pip-version-check "$@" 2>"$folder/log" || {
        cat "$folder/log"
        exit 2
    }
    seen=$(cd "$folder" && environment/bin/python -W ignore -)
    printf '%s\n' "$seen"
    [[ $seen == "$expected" ]] || {
        printf 'This has changed. It was:\n%s\n' "$expected"
        exit 1
    }
}
