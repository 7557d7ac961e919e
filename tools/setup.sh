#!/usr/bin/env bash
# Prepares a machine to build Precis; a second run does nothing.
#   tools/setup.sh [test] [bench] [tidy]     groups of Debian packages beyond those for building
# Installs the Debian packages that are missing, builds the pinned llama.cpp into a cache (see
# tools/setup_llama.sh), and writes where it lies to build/llama_prefix, which CMake reads.
# PRECIS_NO_APT=1: do not install packages, take the tools that are there.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
logs=$root/build/logs
mkdir -p "$logs"
say() { echo "setup: $*" >&2; }

declare -A packages=(
  [build]="g++ make cmake ninja-build pkg-config libhwy-dev libcli11-dev libeigen3-dev python3 python3-pip"
  [test]="libgtest-dev python3-numpy clang-format-14 chromium parallel"
  [bench]="libbenchmark-dev"
  [tidy]="clang-tidy-14"
)

missing=()
if [[ -n ${PRECIS_NO_APT:-} ]]; then
  say "PRECIS_NO_APT is set: no packages are installed"
elif ! command -v dpkg-query >/dev/null; then
  say "not a Debian system: expecting the equivalents of: ${packages[*]}"
else
  for group in build "$@"; do
    [[ -n ${packages[$group]:-} ]] || { say "unknown package group '$group'"; exit 2; }
    for package in ${packages[$group]}; do
      status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
      [[ $status == installed ]] || missing+=("$package")
    done
  done
fi

if ((${#missing[@]})); then
  as_root=()
  if ((EUID != 0)); then
    if ! command -v sudo >/dev/null; then
      say "these Debian packages are missing: ${missing[*]}"
      say "installing them needs root: run 'apt-get install ${missing[*]}' as root, then try again"
      exit 1
    fi
    as_root=(sudo)
  fi
  say "installing ${#missing[@]} Debian packages: ${missing[*]}"
  apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q)
  "${apt[@]}" update >"$logs/apt.log" 2>&1 || say "apt-get update failed, trying with the old lists"
  if ! "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >>"$logs/apt.log" 2>&1; then
    tail -n 20 "$logs/apt.log" >&2
    say "apt-get install failed; the whole log: $logs/apt.log"
    exit 1
  fi
fi

# Written only when it changes: CMake configures again when this file is newer.
found=$("$root/tools/setup_llama.sh")
if [[ $(cat "$root/build/llama_prefix" 2>/dev/null || true) != "$found" ]]; then
  echo "$found" >"$root/build/llama_prefix"
fi
