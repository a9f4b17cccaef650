from __future__ import annotations

import sys

from sinkscope_replication.frozen import frozen, judged, moved

if __name__ == "__main__":
    before = frozen()
    rows = moved(before, judged())
    for key, (was, now) in rows.items():
        print(key, was, now, sep="\n  ")
    print(f"{len(rows)} of {len(before)} verdicts moved")
    sys.exit(bool(rows))
