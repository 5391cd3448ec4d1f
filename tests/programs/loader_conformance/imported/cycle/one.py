from cycle import two

VALUE = two.VALUE + 1
