import sys


class Other:
    VALUE = 14
    __name__ = "replaced"


VALUE = 15
sys.modules[__name__] = Other()
