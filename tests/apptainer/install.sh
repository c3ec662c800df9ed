#!/usr/bin/env bash
# Installs Apptainer on Debian, as root, unless it is there already.
#
# Debian has it only in its unstable branch, built for a newer C library than that of a
# stable release. So the package is unpacked rather than installed, and its two programs
# are pointed at a C library of their own, in a folder that nothing else looks into. The
# packages come through apt from the mirror that this machine uses, signatures checked.
set -euo pipefail

# Where the C library for Apptainer goes.
private=/opt/apptainer-libc

fuse_for_everybody() {
    # Images are mounted by this user, not by root.
    [ -e /dev/fuse ] || mknod /dev/fuse c 10 229
    chmod 666 /dev/fuse
}

# Packages of this release: what reads images, and what the installation itself needs.
from_this_release() {
    local missing=()
    command -v patchelf >/dev/null || missing+=(patchelf)
    command -v unsquashfs >/dev/null || missing+=(squashfs-tools)
    command -v squashfuse_ll >/dev/null || missing+=(squashfuse)
    command -v fuse-overlayfs >/dev/null || missing+=(fuse-overlayfs)
    command -v newuidmap >/dev/null || missing+=(uidmap)
    local library
    for library in libseccomp2 libsqlite3-0; do
        dpkg -s "$library" >/dev/null 2>&1 || missing+=("$library")
    done
    [ ${#missing[@]} = 0 ] && return
    apt-get update -q
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
}

# The mirror that apt itself uses for this release.
mirror() {
    apt-get indextargets --format '$(SITE) $(RELEASE)' 'Created-By: Packages' |
        awk -v release="$(. /etc/os-release && echo "$VERSION_CODENAME")" \
            '$2 == release {print $1; exit}'
}

# Downloads packages of other releases, with lists apart from the machine's own.
download() {
    local folder=$1
    mkdir -p "$folder/lists/partial" "$folder/cache/archives/partial"
    printf 'deb %s %s main\n' "$site" sid "$site" trixie >"$folder/sources.list"
    local options=(
        -q
        -o "Dir::Etc::sourcelist=$folder/sources.list" -o Dir::Etc::sourceparts=/dev/null
        -o "Dir::State::lists=$folder/lists" -o "Dir::Cache=$folder/cache"
        -o APT::Sandbox::User=root -o Acquire::Languages=none
        # Only the lists of packages, of all that a suite offers.
        -o Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled=false
        -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false
    )
    apt-get "${options[@]}" update
    (cd "$folder" && apt-get "${options[@]}" download apptainer/sid libc6/trixie)
}

if command -v apptainer >/dev/null; then
    fuse_for_everybody
    apptainer version
    exit
fi
[ "$(id -u)" = 0 ] || { echo "Apptainer is installed by root" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
from_this_release
site=$(mirror)
[ -n "$site" ] || { echo "apt knows no mirror of this release" >&2; exit 1; }
download "$work"

dpkg-deb --extract "$work"/libc6_*.deb "$work/libc"
loader=$(basename "$(find "$work/libc" -name 'ld-linux*' -print -quit)")
libraries=$(dirname "$(find "$work/libc" -name libc.so.6 -print -quit)")
rm -rf "$private"
cp -a "$libraries" "$private"

dpkg-deb --extract "$work"/apptainer_*.deb "$work/apptainer"
for program in "$work"/apptainer/usr/bin/apptainer \
    "$work"/apptainer/usr/lib/*/apptainer/bin/starter; do
    patchelf --set-interpreter "$private/$loader" --force-rpath --set-rpath "$private" "$program"
done
cp -a "$work/apptainer/." /
fuse_for_everybody
apptainer version
