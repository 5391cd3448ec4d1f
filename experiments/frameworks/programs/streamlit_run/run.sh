#!/bin/sh
# requires: streamlit
# Streamlit's server, and a session that runs the page twice, as a browser does.
set -eu
streamlit run page.py --server.headless true --server.address 127.0.0.1 --server.port "$PORT" \
    --browser.gatherUsageStats false --server.fileWatcherType none &
server=$!
trap 'kill "$server" 2>/dev/null || true' EXIT
python -m frameworks_ask "http://127.0.0.1:$PORT/_stcore/health"
python session.py "ws://127.0.0.1:$PORT/_stcore/stream"
kill -TERM "$server"
wait "$server"
