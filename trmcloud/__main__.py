"""``python -m trmcloud``: the same as ``trmcloud``."""

from trmcloud.cli.main import main

main()
