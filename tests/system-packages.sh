#!/bin/sh
# Installs the Debian packages that tests need, where that is possible; otherwise names the tests that will be skipped.
packages=$(sed 's/#.*//' "$(dirname "$0")/lab/requirements-debian.txt" | tr '\n' ' ')
missing=""
for package in $packages; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing="$missing $package"
done
[ -z "$missing" ] && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "make test: not installed:$missing (needs root on Debian or Ubuntu): the lab tests are skipped"
  exit 0
fi
echo "make test: installing$missing"
apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
