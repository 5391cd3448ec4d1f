"""Pins that imply another value for a key."""

import json

from implying import pin

pin("realize_reads_threshold", 79)
rows = [pin("emulate_precision_casts", value) for value in (False, True)]
rows += [pin("max_fusion_size", 1, one) for one in ("default", "set")]
print(json.dumps([(row["status"], row["reason"], row["after"]) for row in rows]))
