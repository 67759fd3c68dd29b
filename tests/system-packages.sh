#!/bin/sh
# Installs the Debian packages that tests need, where that is possible; otherwise names the tests that will be skipped.
here=$(dirname "$0")

absent() { # of a list of packages, those that are not installed
  for package in $(sed 's/#.*//' "$1"); do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || printf ' %s' "$package"
  done
}

lab=$(absent "$here/lab/requirements-debian.txt")
page=$(absent "$here/requirements-debian.txt")
[ -z "$lab$page" ] && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "make test: not installed:$lab$page (needs root on Debian or Ubuntu): the tests that need it are skipped"
  exit 0
fi
get() { DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null; }
echo "make test: installing$lab$page"
apt-get update -qq || echo "make test: the lists of packages could not be renewed: $0 tries with those that are here"
# Together, or one by one: where there is no such browser package (Ubuntu has it as a snap only), the others are got.
get $lab $page || for package in $lab $page; do get "$package"; done
page=$(absent "$here/requirements-debian.txt")
[ -z "$page" ] || echo "make test: not installed:$page: the tests that need it are skipped"
lab=$(absent "$here/lab/requirements-debian.txt")
[ -z "$lab" ] || { echo "make test: not installed:$lab: the lab needs it, and apt-get says above why it is not there" >&2; exit 1; }
