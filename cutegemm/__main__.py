"""`python -m cutegemm`: the `cutegemm` command."""

import sys

from cutegemm.cli import main

sys.exit(main())
