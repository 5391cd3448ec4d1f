print("main", __spec__.name, type(__loader__).__name__)
