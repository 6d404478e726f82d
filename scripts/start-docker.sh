#!/usr/bin/env bash
# Starts a Docker engine on this machine. For CI and any Debian-like machine, as root.
#
#   scripts/start-docker.sh
#
# Does nothing if an engine answers already. Otherwise it installs docker.io if dockerd is missing,
# starts dockerd in the background and waits for it. It pulls no image and needs no client.
set -euo pipefail

socket=/var/run/docker.sock
log=/var/log/grade-dockerd.log
wait_s=60

say() { echo "start-docker: $*" >&2; }

answers() {
  case "${DOCKER_HOST:-unix://$socket}" in
    unix://*) local path="${DOCKER_HOST:-unix://$socket}"; path="${path#unix://}" ;;
    *) say "DOCKER_HOST=$DOCKER_HOST is not a local socket; the grader needs an engine on this machine"; exit 1 ;;
  esac
  [ -S "$path" ] || return 1
  # The engine's health check over the socket, since a docker client may be missing.
  python3 - "$path" <<'PING'
import socket, sys
try:
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(5)
        s.connect(sys.argv[1])
        s.sendall(b"GET /_ping HTTP/1.0\r\nHost: engine\r\n\r\n")
        sys.exit(0 if b" 200 " in s.recv(64) else 1)
except OSError:
    sys.exit(1)
PING
}

if answers; then
  say "an engine answers already"
  exit 0
fi
if [ -n "${DOCKER_HOST:-}" ]; then
  say "no engine answers at DOCKER_HOST=$DOCKER_HOST; start it, or unset DOCKER_HOST"
  exit 1
fi
if [ "$(id -u)" != 0 ]; then
  say "no engine answers, and starting one needs root: sudo $0"
  exit 1
fi

missing=()
command -v dockerd >/dev/null || missing+=(docker.io)
command -v iptables >/dev/null || missing+=(iptables)
if [ ${#missing[@]} -gt 0 ]; then
  command -v apt-get >/dev/null || { say "install a Docker engine (dockerd) first; apt-get is missing"; exit 1; }
  say "installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -q >/dev/null
  apt-get install -y -q --no-install-recommends "${missing[@]}" >/dev/null
  # An init system may have started it on installation.
  if answers; then
    say "the engine is up"
    exit 0
  fi
fi

# The pid file of a killed engine would keep the new one from starting.
pidfile=/var/run/docker.pid
if [ -f "$pidfile" ] && ! kill -0 "$(cat "$pidfile")" 2>/dev/null; then
  rm -f "$pidfile"
fi

# Runners have no network, so an engine without a bridge is good enough.
for options in "" "--bridge=none --iptables=false --ip6tables=false"; do
  say "starting dockerd $options(log: $log)"
  # shellcheck disable=SC2086 # the options are split into words on purpose
  setsid dockerd --host "unix://$socket" $options >"$log" 2>&1 </dev/null &
  engine=$!
  for _ in $(seq $((wait_s * 5))); do
    if answers; then
      say "the engine is up"
      exit 0
    fi
    kill -0 "$engine" 2>/dev/null || break
    sleep 0.2
  done
  kill "$engine" 2>/dev/null && wait "$engine" 2>/dev/null || true
done
say "dockerd does not start; the end of $log:"
tail -n 5 "$log" >&2
exit 1
