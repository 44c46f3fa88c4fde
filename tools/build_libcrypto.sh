#!/bin/sh
# Builds the static libcrypto of the released wheels, with its headers, from the source of OpenSSL.
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
# Only AES-GCM, HKDF and SHA-256 are used: the other algorithms and all protocols stay out, and with
# them most of what security advices are about. Without openssl.cnf (no-autoload-config) the cipher
# of a wheel depends on no file of its host.
algorithms="argon2 aria bf blake2 camellia cast chacha cmac des dh dsa ec idea md4 mdc2 ml-dsa ml-kem
  ocb poly1305 rc2 rc4 rmd160 scrypt seed siphash siv slh-dsa sm3 sm4 whirlpool"
others="apps async autoload-config cmp cms comp ct dgram docs dso dtls engine http legacy module ocsp
  psk quic rfc3779 shared sock srp tests tls ts ui-console"
# shellcheck disable=SC2046,SC2086 # One argument for each.
./Configure $(printf 'no-%s ' $algorithms $others) >/dev/null
make -s build_generated >/dev/null
make -s -j"$(nproc)" libcrypto.a >/dev/null
mkdir -p "$prefix/lib"
cp libcrypto.a "$prefix/lib"
cp -R include "$prefix"
echo "libcrypto $VERSION is in $prefix/lib"
