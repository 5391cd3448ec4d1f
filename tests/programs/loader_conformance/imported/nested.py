def work():
    import broken


work()
