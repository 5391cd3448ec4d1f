"""Pickles elsewhere."""

import pickle
import subprocess
import sys
from importlib.util import find_spec

spec = find_spec("alone")
code = "import pickle, sys; print(pickle.load(sys.stdin.buffer))"
for thing in ((spec, spec.loader), find_spec("target").loader, vars(spec.loader)):
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], input=pickle.dumps(thing), stdout=subprocess.PIPE
    )
    print(done.returncode, done.stdout.decode())
