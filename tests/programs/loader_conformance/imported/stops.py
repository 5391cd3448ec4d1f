VALUE = 8
raise SystemExit(3)
