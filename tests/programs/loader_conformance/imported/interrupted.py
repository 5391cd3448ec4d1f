VALUE = 9
raise KeyboardInterrupt
