import cycle.one

VALUE = hasattr(cycle, "one")
