# Makes the Python environment of a checkout; read by deploy/quickstart.sh and tests/run.sh.
#
# An environment is made once and kept while pyproject.toml, constraints.txt, the locks, the interpreter
# and the place of the checkout stay as they are. It is an editable installation, so it always runs the
# sources beside it. Each library has a SHA-256 of the lock files, except PyTorch (see lock.py). A directory that these
# scripts did not make is never touched.

readonly MARK=made-by-global-layers

# fail PROGRAM WHAT CONSEQUENCE REMEDY: an error in three sentences.
fail() {
    printf '%s: %s\n  %s\n  %s\n' "$1" "$2" "$3" "$4" >&2
    exit 1
}

# suitable_python PROGRAM: prints the path of an interpreter that can make the environment.
suitable_python() {
    local candidate found="" untouched="Nothing was installed and nothing was started."
    for candidate in "${PYTHON:-python3}" python3.13 python3.12 python3.11; do
        command -v -- "$candidate" >/dev/null || continue
        found=yes
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            "$candidate" -c 'import ensurepip, venv' 2>/dev/null || fail "$1" \
                "$candidate cannot make environments: the module venv or ensurepip is missing." "$untouched" \
                "Install it (Debian: apt install python3-venv) and start again."
            command -v -- "$candidate"
            return
        fi
    done
    if [[ -n $found ]]; then
        fail "$1" "The Python on this computer is older than 3.11." "$untouched" \
            "Install Python 3.11 or newer, or name one: PYTHON=/path/to/python3.11 $0"
    fi
    fail "$1" "There is no Python on this computer." "$untouched" \
        "Install Python 3.11 or newer (Debian: apt install python3 python3-venv) and start again."
}

# show_installation PROCESS LOG: one line every few seconds while the process runs, so that nobody takes it for dead.
show_installation() {
    local every=20 end=$'\n'
    [[ -t 1 ]] && every=2 end=$'\r'
    while kill -0 "$1" 2>/dev/null; do
        printf '  %3d s: %-60.60s%s' "$SECONDS" "$(tail -n 1 -- "$2" 2>/dev/null | tr -cd '[:print:]')" "$end"
        for ((second = 0; second < every; second++)); do
            kill -0 "$1" 2>/dev/null && sleep 1
        done
    done
    printf '  %3d s: pip has ended.%-55s\n' "$SECONDS" ""
}

# make_environment PROGRAM CHECKOUT DIRECTORY EXTRAS: afterwards DIRECTORY/bin/python is ready.
make_environment() {
    local program=$1 checkout=$2 directory=$3 extras=$4 python key log locks=(-r "$2/deploy/site.lock")
    [[ ,$extras, == *,development,* ]] && locks+=(-r "$checkout/deploy/development.lock")
    python=$(suitable_python "$program") || exit 1
    key=$({
        "$python" -c 'import sys; print(sys.version, sys.executable)'
        printf '%s\n' "$checkout" "$extras"
        cat -- "$checkout/pyproject.toml" "$checkout/constraints.txt" "$checkout"/deploy/*.lock
    } | sha256sum)

    # Two scripts that start at once take turns; the lock is the checkout's own directory.
    exec 9<"$checkout"
    flock 9
    if [[ -e $directory && ! -e $directory/$MARK ]]; then
        fail "$program" "$directory exists and was not made by this script." "It was left as it is." \
            "Move it elsewhere and start again."
    fi
    if [[ ! -x $directory/bin/python || $(cat -- "$directory/$MARK" 2>/dev/null) != "$key" ]]; then
        echo "Installing into $directory: once, some minutes, 1.5 to 5 GB."
        rm -rf -- "$directory"
        mkdir -- "$directory" 2>/dev/null || fail "$program" "$directory cannot be made." "Nothing was installed." \
            "Use a checkout in a place that you may write."
        : >"$directory/$MARK"
        log=$directory/install.log
        {
            # pip keeps whole libraries there, and a /tmp in memory can be too small for PyTorch.
            export TMPDIR=$directory/unpacking
            "$python" -m venv -- "$directory" && mkdir -- "$TMPDIR" &&
                "$directory/bin/python" -m pip install --no-input --disable-pip-version-check \
                    --no-deps --require-hashes -r "$checkout/deploy/build.lock" &&
                "$directory/bin/python" -m pip install --no-input --disable-pip-version-check \
                    --no-deps --require-hashes --no-build-isolation --use-pep517 "${locks[@]}" &&
                "$directory/bin/python" -m pip install --no-input --disable-pip-version-check --no-build-isolation \
                    --constraint "$checkout/constraints.txt" --editable "$checkout[$extras]" &&
                rm -r -- "$TMPDIR"
        } >"$log" 2>&1 </dev/null 9<&- &
        show_installation $! "$log"
        if ! wait $!; then
            tail -n 5 -- "$log" >&2
            fail "$program" "The installation failed. The last lines of $log stand above." \
                "Nothing was started." "Mend the cause (often the network or a full disk) and start again."
        fi
        printf '%s\n' "$key" >"$directory/$MARK"
    fi
    exec 9<&-
}
