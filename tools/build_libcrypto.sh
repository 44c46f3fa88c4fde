#!/bin/sh
# Builds the libcrypto of the released wheels, with its headers, from the source of OpenSSL.
# Usage: build_libcrypto.sh PREFIX [TARBALL]     (TARBALL: a download of $URL; else it is fetched)
#
# The images of manylinux_2_28 have OpenSSL 1.1.1. Needs a C compiler, make, perl and its modules
# (RHEL: perl-core), and curl without TARBALL.
set -eu

# Chosen: the branch with long-term support, until April 2030. A new wheel needs its newest version.
VERSION=3.5.9
# Source: the sha256 that OpenSSL publishes beside the tarball.
SHA256=603f5602e2eef00d77fbd429d34dcd5822bb301757a1bc9cdb24c670f1eb859a
URL=https://github.com/openssl/openssl/releases/download/openssl-$VERSION/openssl-$VERSION.tar.gz

prefix=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

tarball=${2:-$scratch/openssl.tar.gz}
[ -f "$tarball" ] || curl --fail --location --silent --show-error --output "$tarball" "$URL"
echo "$SHA256  $tarball" | sha256sum --check --quiet

tar -xf "$tarball" -C "$scratch" --no-same-owner --strip-components=1
cd "$scratch"
./Configure --prefix="$prefix" --libdir=lib no-apps no-docs no-legacy no-module no-tests >/dev/null
make -s -j"$(nproc)" build_libs >/dev/null
make -s install_dev >/dev/null
echo "libcrypto $VERSION is in $prefix/lib"
