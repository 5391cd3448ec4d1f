#!/bin/sh
# requires: ray[serve]
# Ray Serve's own command runs a deployment, whose replica compiles.
set -eu
# A socket's path may have 107 characters.
RAY_TMPDIR=$(mktemp -d)
export RAY_TMPDIR RAY_USAGE_STATS_ENABLED=0 RAY_AUTH_MODE=disabled RAY_SERVE_LOG_TO_STDERR=0
sed "s/PORT/$PORT/" serve.yaml >config.yaml
# sh lets what it starts in the background ignore SIGINT.
env --default-signal=INT serve run config.yaml >&2 &
server=$!
trap 'kill "$server" 2>/dev/null || true' EXIT
python -m frameworks_ask "http://127.0.0.1:$PORT/"
python -m frameworks_ask "http://127.0.0.1:$PORT/"
kill -INT "$server"
wait "$server" || echo "serve run: status $?"
rm -r "$RAY_TMPDIR"
