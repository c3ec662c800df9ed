#!/usr/bin/env bash
# Runs a test program as a user without any rights. Called by cargo as its runner, as
# root, with the program and its arguments.
#
# What the user may not see of the build folder is put beside the program: itself and the
# helper of sandboxes. The user has a home folder and a range of subordinate ids, as
# `useradd` gives, and a runtime folder, as a login gives.
set -euo pipefail

user=polar-rootless
program=$1
shift
id "$user" >/dev/null 2>&1 || useradd --create-home --shell /bin/sh "$user"
home=$(getent passwd "$user" | cut -d: -f6)
runtime=/run/$user
install --directory --mode 700 --owner "$user" --group "$user" "$runtime"
place=$(mktemp -d "$home/tests-XXXXXX")

as_user() {
    setpriv --reuid "$user" --regid "$user" --init-groups --reset-env --inh-caps=-all -- \
        env XDG_RUNTIME_DIR="$runtime" "$@"
}

clear_up() {
    # Ends the process that Podman keeps between two calls.
    if command -v podman >/dev/null; then
        as_user podman system migrate >/dev/null 2>&1 || true
    fi
    rm -rf "$place"
}
trap clear_up EXIT

helper=$(dirname "$(dirname "$program")")/polar-sandbox-helper
install --mode 755 "$program" "$place/test"
install --mode 755 "$helper" "$place/polar-sandbox-helper"
chown -R "$user:" "$place"
cd "$place"
# Not `exec`, so that the folder goes afterwards.
as_user env POLAR_TEST_HELPER="$place/polar-sandbox-helper" POLAR_TEST_FOLDER="$place" \
    RUST_BACKTRACE="${RUST_BACKTRACE:-0}" "$place/test" "$@"
