import warnings

for level in range(1, 5):
    warnings.warn("level %d" % level, stacklevel=level)
VALUE = 10
