import sys

from tests.hostile.soak import main

if __name__ == "__main__":
    sys.exit(main())
