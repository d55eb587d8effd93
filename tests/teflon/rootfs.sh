#!/bin/sh
# An arm64 root with Debian's Mesa Teflon delegate and TFLite, and what runs it on another CPU.
#   rootfs.sh FOLDER    does nothing if all is there; else needs apt, and root if tools are missing
set -eu
root=$1
python=${PYTHON:-python3}
export DEBIAN_FRONTEND=noninteractive
for tool in mmdebstrap qemu-aarch64 aarch64-linux-gnu-gcc; do
    command -v "$tool" >/dev/null && continue
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends \
        mmdebstrap qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross >/dev/null
    break
done
[ -e "$root/.complete" ] && exit 0
if [ -e "$root" ]; then
    echo "$root exists and is no root of this script: remove it, or name another folder." >&2
    exit 1
fi
mkdir -p "$(dirname "$root")"
new=$root.new
rm -rf "$new"
mmdebstrap --quiet --variant=extract --architectures=arm64 \
    --keyring=/usr/share/keyrings/debian-archive-keyring.gpg \
    --aptopt='APT::Default-Release "trixie-backports"' \
    --include=libc6,libstdc++6,python3-minimal,libpython3-stdlib,python3-numpy,mesa-teflon-delegate \
    trixie "$new" \
    "deb http://deb.debian.org/debian trixie main" \
    "deb http://deb.debian.org/debian trixie-backports main"
[ -e "$new/lib" ] || ln -s usr/lib "$new/lib"
for name in blas lapack; do # alternatives are not set up in an extracted root
    ln -sf "$name/lib$name.so.3" "$new/usr/lib/aarch64-linux-gnu/lib$name.so.3"
done
"$python" -m pip install --quiet --disable-pip-version-check --root-user-action=ignore \
    --target "$new/usr/lib/python3/dist-packages" \
    --platform manylinux_2_27_aarch64 --python-version 3.13 --no-deps \
    ai-edge-litert flatbuffers typing-extensions backports.strenum tqdm
touch "$new/.complete"
mv "$new" "$root"
