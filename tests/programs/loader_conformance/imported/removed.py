import sys

VALUE = 16
del sys.modules[__name__]
