#!/bin/sh
# requires: gradio
# Gradio's Interface, asked by its client.
set -eu
export GRADIO_ANALYTICS_ENABLED=False GRADIO_SERVER_PORT="$PORT"
python interface.py &
server=$!
trap 'kill "$server" 2>/dev/null || true' EXIT
python -m frameworks_ask "http://127.0.0.1:$PORT/config" >config.json
python - <<'END'
import os

from gradio_client import Client

client = Client(f"http://127.0.0.1:{os.environ['PORT']}", verbose=False)
for value in (1, 2):
    print(client.predict(value, api_name="/predict"))
END
kill -TERM "$server"
wait "$server" || test $? = 143
