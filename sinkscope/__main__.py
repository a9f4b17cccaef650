"""`python -m sinkscope` is `sinkscope`."""

import sys

from sinkscope.cli import main

sys.exit(main())
