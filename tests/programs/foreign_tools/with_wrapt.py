"""wrapt has hooks for the same modules. The argument puts its finder behind ours."""

import sys

import wrapt

names = ("torch", "torch._inductor.config")


def hook(module):
    print("hook of", module.__name__, module.__spec__.loader.__class__.__name__)


for name in names:
    wrapt.register_post_import_hook(hook, name)
# wrapt puts its finder in front of ours; "behind" moves it behind ours.
if sys.argv[1:] == ["behind"]:
    finder = sys.meta_path.pop(0)
    sys.meta_path.insert(1, finder)
import program

program.main()
for name in names:
    wrapt.register_post_import_hook(hook, name)
