#!/bin/sh
# Checks the prerequisites that `make` cannot install, and names all missing ones.
# Usage: check_prerequisites.sh [python]    (CXX names another C++ compiler than c++)
set -u

python=${1:-python3}
cxx=${CXX:-c++}
missing=0
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT

# lacks WHAT DEBIAN_PACKAGES FEDORA_PACKAGES
lacks() {
  missing=$((missing + 1))
  printf 'missing: %s\n' "$1" >&2
  printf '  Debian, Ubuntu:  apt-get install %s\n' "$2" >&2
  printf '  Fedora, RHEL:    dnf install %s\n' "$3" >&2
}

# compiles NAME FLAGS...: whether the C++20 program on standard input compiles and links.
compiles() {
  name=$1
  shift
  cat >"$scratch/$name.cc"
  "$cxx" -std=c++20 "$scratch/$name.cc" -o "$scratch/$name" "$@" >/dev/null 2>&1
}

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  lacks "Python 3.11 or newer ('$python' is not; give another: make PYTHON=python3.12 ...)" \
    "python3 python3-venv python3-dev" "python3.12 python3.12-devel"
else
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
    lacks "venv and pip of $python" "python$version-venv" "python3-pip"
  fi
  header=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["include"])')/Python.h
  if [ ! -f "$header" ]; then
    lacks "the headers of $python ($header)" "python$version-dev" "python$version-devel"
  fi
fi

if ! compiles cxx20 <<'END'
#include <compare>
#include <span>
#include <thread>
int main() { std::jthread thread([] {}); return static_cast<int>(std::span<int>().size()); }
END
then
  lacks "a C++20 compiler, GCC 12 or Clang 14 and up ('$cxx' is not one; CXX names another)" \
    "g++" "gcc-c++"
elif ! compiles crypto -lcrypto <<'END'
#include <openssl/opensslv.h>
#include <openssl/evp.h>
static_assert(OPENSSL_VERSION_MAJOR >= 3);
int main() { return EVP_CIPHER_CTX_new() == nullptr; }
END
then
  lacks "OpenSSL's libcrypto, version 3.0 or newer, with headers" "libssl-dev" "openssl-devel"
fi

if [ "$missing" -gt 0 ]; then
  printf '%s missing; install the above and run make again.\n' "$missing" >&2
  exit 1
fi
