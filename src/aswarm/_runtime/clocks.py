"""The clocks and the random bytes of this process, which a simulation replaces.

Callers read these functions from this module at each call (`clocks.monotonic()`). So a program without a simulation has no
additional stack frame. The functions of the standard module `random` are not here: a simulation sets their seed.
"""

import os
import time as _time

monotonic = _time.monotonic
time = _time.time
sleep = _time.sleep
"""Blocks a thread. In a simulation, it only advances the simulated clock."""
urandom = os.urandom
