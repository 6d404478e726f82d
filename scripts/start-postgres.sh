#!/usr/bin/env bash
# Starts a temporary PostgreSQL for the tests and prints its URL, the value of GRADE_TEST_POSTGRES.
# For CI and any Debian-like machine.
#
#   export GRADE_TEST_POSTGRES=$(scripts/start-postgres.sh)
#   scripts/start-postgres.sh stop
#
# The cluster is in a temporary folder and listens on a Unix socket there, never on the network. A
# running cluster is used again. As root, the script runs the server as the user postgres and installs
# Debian's package if it is missing.
set -euo pipefail

folder="${TMPDIR:-/tmp}/grade-postgres-$(id -u)"
data="$folder/data"
log="$folder/log"

say() { echo "start-postgres: $*" >&2; }

programs() {
  local found
  for found in /usr/lib/postgresql/*/bin/initdb "$(command -v initdb || true)"; do
    [ -x "$found" ] && dirname "$found" && return
  done
  return 1
}

# PostgreSQL refuses to run as root. `cd /`: postgres may not be allowed to read this folder.
as_owner() {
  if [ "$(id -u)" = 0 ]; then
    (cd / && runuser -u postgres -- "$@")
  else
    "$@"
  fi
}

if ! programs >/dev/null; then
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    say "PostgreSQL is not installed; sudo apt-get install postgresql"
    exit 1
  fi
  say "installing postgresql"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -q >/dev/null
  apt-get install -y -q --no-install-recommends postgresql >/dev/null
fi
bin="$(programs)"

if [ "${1:-}" = stop ]; then
  if [ -d "$data" ]; then
    as_owner "$bin/pg_ctl" --pgdata "$data" --mode immediate stop >/dev/null 2>&1 || true
    rm -rf "$folder"
  fi
  exit 0
fi

if ! as_owner "$bin/pg_ctl" --pgdata "$data" status >/dev/null 2>&1; then
  rm -rf "$folder"
  mkdir -m 700 "$folder"
  [ "$(id -u)" != 0 ] || chown postgres: "$folder"
  # The folder's mode protects the socket. fsync is off: the data may be lost in a crash.
  if ! { as_owner "$bin/initdb" --pgdata "$data" --username postgres --auth trust \
           --encoding UTF8 --locale C --no-sync &&
         as_owner "$bin/pg_ctl" --pgdata "$data" --log "$log" --wait start --options \
           "-c listen_addresses= -c unix_socket_directories=$folder -c fsync=off"; } >"$folder/out" 2>&1
  then
    say "the cluster does not start:"
    tail -n 5 "$folder/out" "$log" >&2 || true
    exit 1
  fi
fi
echo "postgresql://postgres@/postgres?host=$folder"
