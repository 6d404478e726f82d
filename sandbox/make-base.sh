#!/usr/bin/env bash
# Make a base image for sandbox/Dockerfile from Debian's packages, without an image registry.
#
#   sandbox/make-base.sh TAG [MORE PACKAGES, comma-separated]
#
# Needs root and an engine; installs mmdebstrap and curl when missing. Takes one or two minutes.
set -euo pipefail

tag="${1:?usage: $0 TAG [PACKAGES]}"
packages="python3,python3-venv,python3-dev,gcc,g++,libc6-dev${2:+,$2}"
missing=()
for tool in mmdebstrap curl; do
  command -v "$tool" >/dev/null || missing+=("$tool")
done
if [ ${#missing[@]} -gt 0 ]; then
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -q >/dev/null
  apt-get install -y -q --no-install-recommends "${missing[@]}" >/dev/null
fi
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
mmdebstrap --quiet --variant=minbase --include="$packages" bookworm "$work/base.tar"
socket="${DOCKER_HOST:-unix:///var/run/docker.sock}"
curl --fail --silent --show-error --unix-socket "${socket#unix://}" \
  --header "Content-Type: application/x-tar" --upload-file "$work/base.tar" --request POST \
  "http://engine/images/create?fromSrc=-&repo=${tag%:*}&tag=${tag##*:}" >/dev/null
echo "made $tag"
