from rocm_autopatch.support import safe_path

# Before anything else is imported.
safe_path.leave_out_first()

import sys  # noqa: E402

from rocm_autopatch.cli import main  # noqa: E402

sys.exit(main())
