#!/usr/bin/env bash
# Runs a test program as a user without any rights. Called by cargo as its runner, as
# root, with the program and its arguments.
#
# What the user may not see of the build folder is put beside the program: itself and the
# helper of sandboxes. The user has a home folder and a range of subordinate ids, as
# `useradd` gives.
set -euo pipefail

user=polar-rootless
program=$1
shift
id "$user" >/dev/null 2>&1 || useradd --create-home --shell /bin/sh "$user"
home=$(getent passwd "$user" | cut -d: -f6)
place=$(mktemp -d "$home/tests-XXXXXX")
trap 'rm -rf "$place"' EXIT
helper=$(dirname "$(dirname "$program")")/polar-sandbox-helper
install --mode 755 "$program" "$place/test"
install --mode 755 "$helper" "$place/polar-sandbox-helper"
chown -R "$user:" "$place"
cd "$place"
# Not `exec`, so that the folder goes afterwards.
setpriv --reuid "$user" --regid "$user" --init-groups --reset-env --inh-caps=-all -- \
    env POLAR_TEST_HELPER="$place/polar-sandbox-helper" POLAR_TEST_FOLDER="$place" \
    XDG_RUNTIME_DIR="${POLAR_TEST_RUNTIME_DIR:-}" \
    RUST_BACKTRACE="${RUST_BACKTRACE:-0}" "$place/test" "$@"
