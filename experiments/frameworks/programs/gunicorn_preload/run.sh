#!/bin/sh
# requires: gunicorn
# A server that imports torch and the model, and whose forked workers compile.
set -eu
# gunicorn ends a worker that answers nothing for 30 seconds, unless it is told otherwise.
gunicorn gunicorn_app:application --preload --workers 2 --timeout 300 --bind "127.0.0.1:$PORT" &
server=$!
trap 'kill "$server" 2>/dev/null || true' EXIT
python -m frameworks_ask "http://127.0.0.1:$PORT/"
python -m frameworks_ask "http://127.0.0.1:$PORT/"
kill -TERM "$server"
wait "$server"
