#!/usr/bin/env bash
# Tries the README's commands on a bare Debian 12, in a chroot that is thrown away afterwards.
#   tools/try_fresh_machine.sh MIRROR [COMMAND...]
# MIRROR is a Debian mirror's URL, as in the machine's apt sources. Each COMMAND is one line for the
# shell, run in a clone of the last commit; the default is what the README says. Needs root and
# debootstrap. The pip and proxy settings of this machine are taken along.
# KEEP=1 keeps the chroot and prints its path. TARGET=path runs in one that was kept.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
mirror=${1:?usage: tools/try_fresh_machine.sh MIRROR [COMMAND...]}
shift
(($#)) || set -- "apt-get install -y make && make demo" "make test"

work=
cleanup() { [[ -z $work || -n ${KEEP:-} ]] || rm -rf --one-file-system "$work"; }
trap cleanup EXIT
if [[ -n ${TARGET:-} ]]; then
  target=$TARGET
else
  work=$(mktemp -d "${TMPDIR:-/var/tmp}/precis-fresh.XXXXXX")
  target=$work/debian
  echo "trial: debootstrap" >&2
  debootstrap --variant=minbase bookworm "$target" "$mirror" >"$work/debootstrap.log" 2>&1 ||
    { tail -n 20 "$work/debootstrap.log" >&2; exit 1; }
  cp -L /etc/resolv.conf /etc/hosts "$target/etc/"
  ! compgen -G '/etc/apt/apt.conf.d/*proxy*' >/dev/null || cp /etc/apt/apt.conf.d/*proxy* "$target/etc/apt/apt.conf.d/"
  [[ ! -f /etc/pip.conf ]] || cp /etc/pip.conf "$target/etc/"
fi
if [[ -d $target/trial/precis ]]; then
  git -C "$target/trial/precis" pull --quiet --ff-only "$root" HEAD
else
  mkdir -p "$target/trial"
  git clone --quiet "$root" "$target/trial/precis"
fi

# A private certificate bundle moves to a name that the ca-certificates package does not overwrite.
settings=(HOME=/trial PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8)
bundle=${PIP_CERT:-${SSL_CERT_FILE:-}}
if [[ -n $bundle ]]; then
  cp -L "$bundle" "$target/etc/trial-certificates.crt"
  settings+=(PIP_CERT=/etc/trial-certificates.crt)
fi
while IFS='=' read -r name value; do
  settings+=("$name=$value")
done < <(env | grep -E '^(PIP_[A-Z_]+|https?_proxy|HTTPS?_PROXY|no_proxy|NO_PROXY|CI|MODELS)=' | grep -v '^PIP_CERT=')

for command in "$@"; do
  echo "trial: $command" >&2
  start=$SECONDS
  # The mounts live in a namespace of their own and end with the command.
  unshare --mount bash -euc '
    mount -t proc proc "$1/proc"
    mount --rbind /dev "$1/dev"
    exec chroot "$1" env -i "${@:3}" bash -c "cd /trial/precis && $2"
  ' _ "$target" "$command" "${settings[@]}"
  echo "trial: done in $(((SECONDS - start) / 60)) min $(((SECONDS - start) % 60)) s: $command" >&2
done
[[ -z ${KEEP:-} ]] || echo "trial: kept in $target" >&2
