"""A server that is ready after a while, and has started a process in a group of its own."""

import http.server
import os
import subprocess
import sys
import time

child = subprocess.Popen(
    [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
)
open("children", "a").write("%d %d\n" % (os.getpid(), child.pid))
if "CRASH" in os.environ:
    sys.exit("RuntimeError: out of memory")
time.sleep(0.05)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"8" if "GOOD" in os.environ else b"10")

    def log_message(self, *_):
        pass


server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
open("port", "w").write(str(server.server_port))
print("ready to serve", flush=True)
server.serve_forever()
