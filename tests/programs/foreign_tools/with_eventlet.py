"""eventlet has patched the standard library before torch is imported."""

import warnings

warnings.simplefilter("ignore")
import eventlet

eventlet.monkey_patch()
import program

pool = eventlet.GreenPool()
print(list(pool.imap(program.note, ["a", "b", "c"])))
