#!/usr/bin/env bash
# Installs Podman with what it needs to run without root, on Debian, as root. Packages that
# are there already are left alone.
set -euo pipefail

missing=()
command -v podman >/dev/null || missing+=(podman)
command -v newuidmap >/dev/null || missing+=(uidmap)
command -v fuse-overlayfs >/dev/null || missing+=(fuse-overlayfs)
command -v slirp4netns >/dev/null || missing+=(slirp4netns)
if [ ${#missing[@]} != 0 ]; then
    [ "$(id -u)" = 0 ] || { echo "missing: ${missing[*]}; root installs them" >&2; exit 1; }
    apt-get update -q
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
fi
# What users without rights mount and reach networks with.
if [ "$(id -u)" = 0 ]; then
    mkdir -p /dev/net
    [ -e /dev/fuse ] || mknod /dev/fuse c 10 229
    [ -e /dev/net/tun ] || mknod /dev/net/tun c 10 200
    chmod 666 /dev/fuse /dev/net/tun
fi
podman --version
