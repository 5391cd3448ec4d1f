"""typeguard instruments all modules."""

from typeguard import install_import_hook

install_import_hook()
import program

program.main()
import json

import torch

print(json.__name__)
