"""beartype instruments all modules."""

import warnings

warnings.simplefilter("ignore")
from beartype.claw import beartype_all

beartype_all()
import program

program.main()
import torch._inductor.config

try:
    program.note(1)
except Exception as error:
    print(type(error).__name__)
try:
    torch._inductor.config.__getattr__(1)
except Exception as error:
    print(type(error).__name__)
