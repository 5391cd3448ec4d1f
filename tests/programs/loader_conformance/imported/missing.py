VALUE = 7
import quite_absent
