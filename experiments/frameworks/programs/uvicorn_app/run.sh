#!/bin/sh
# requires: uvicorn
# An ASGI server that compiles at the first request, and that SIGTERM ends.
set -eu
uvicorn uvicorn_app:application --port "$PORT" --no-access-log &
server=$!
trap 'kill "$server" 2>/dev/null || true' EXIT
python -m frameworks_ask "http://127.0.0.1:$PORT/"
python -m frameworks_ask "http://127.0.0.1:$PORT/"
kill -TERM "$server"
# uvicorn ends by the signal that it was sent.
wait "$server" || test $? = 143
