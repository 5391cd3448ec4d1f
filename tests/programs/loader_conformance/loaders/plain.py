"""Plain.

hooks: made
"""

from memory import Plain, install, show

install(Plain())
import made

show(made)
print(vars(made.__loader__))
