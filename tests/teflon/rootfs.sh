#!/bin/sh
# An arm64 root with Debian's Mesa Teflon delegate and TFLite, and what runs it on another CPU.
#   rootfs.sh FOLDER    needs root and apt; does nothing if the folder is already complete
set -eu
root=$1
[ -e "$root/.complete" ] && exit 0
export DEBIAN_FRONTEND=noninteractive
command -v mmdebstrap qemu-aarch64 aarch64-linux-gnu-gcc >/dev/null || {
    apt-get update -qq
    apt-get install -y -qq mmdebstrap qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross >/dev/null
}
rm -rf "$root"
mmdebstrap --quiet --variant=extract --architectures=arm64 \
    --keyring=/usr/share/keyrings/debian-archive-keyring.gpg \
    --aptopt='APT::Default-Release "trixie-backports"' \
    --include=libc6,libstdc++6,python3-minimal,libpython3-stdlib,python3-numpy,mesa-teflon-delegate \
    trixie "$root" \
    "deb http://deb.debian.org/debian trixie main" \
    "deb http://deb.debian.org/debian trixie-backports main"
[ -e "$root/lib" ] || ln -s usr/lib "$root/lib"
for name in blas lapack; do # alternatives are not set up in an extracted root
    ln -sf "$name/lib$name.so.3" "$root/usr/lib/aarch64-linux-gnu/lib$name.so.3"
done
python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore \
    --target "$root/usr/lib/python3/dist-packages" \
    --platform manylinux_2_27_aarch64 --python-version 3.13 --no-deps \
    ai-edge-litert flatbuffers typing-extensions backports.strenum tqdm
touch "$root/.complete"
