print("executing", __name__, type(__loader__).__name__, sorted(vars(__loader__)))
print(__spec__.loader is __loader__, __spec__.name, __spec__.origin == __file__)
VALUE = 1
