"""Here so that pytest puts this directory on the path: `rig`, `fakes` and the helpers beside them."""

import signal

# A shell starts what runs in the background with signals ignored, which programs under test would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, signal.SIG_DFL)
