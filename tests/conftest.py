"""What every test process begins with."""

from __future__ import annotations

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So it is where tests are started in the background; what they start would be deaf to Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
