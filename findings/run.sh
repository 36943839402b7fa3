#!/usr/bin/env bash
# Runs the findings that are named, or all of them: findings/run.sh [NAME...]
set -uo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")"
names=("$@")
if ((!$#)); then
    for file in *.sh; do
        [[ $file == observe.sh || $file == run.sh ]] || names+=("${file%.sh}")
    done
fi
changed=()
for name in "${names[@]}"; do
    echo "== $name"
    "./$name.sh" </dev/null || changed+=("$name")
done
echo "findings=${#names[@]} changed=${#changed[@]} ${changed[*]}"
((!${#changed[@]}))
