"""Runs cells in a kernel: the arguments."""

import json
import sys

from jupyter_client.manager import start_new_kernel

manager, client = start_new_kernel(kernel_name="python3")
said = []
for cell in sys.argv[1:]:
    out = {"stdout": "", "stderr": ""}

    def hook(message, out=out):
        if message["msg_type"] == "stream":
            out[message["content"]["name"]] += message["content"]["text"]
        elif message["msg_type"] == "error":
            out["stderr"] += str(message["content"]["evalue"])

    client.execute_interactive(cell, output_hook=hook, timeout=120)
    said.append(out)
client.stop_channels()
manager.shutdown_kernel(now=False)
print(json.dumps(said))
