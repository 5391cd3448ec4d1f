"""gevent patches the standard library after torch is imported."""

import program

program.main()
from gevent import monkey

monkey.patch_all()
import gevent

print(gevent.spawn(program.note, "later").get(timeout=20))
