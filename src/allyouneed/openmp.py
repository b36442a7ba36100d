"""How the threads of OpenMP wait for each other. It must be set before torch is imported.

Every parallel operation of torch ends in a barrier. By default a thread that arrives first spins for about 10 ms before
it sleeps. On a quiet machine that is the fastest way to wait. If another process has one of the cores, the operation
takes as long as the scheduler keeps the last thread waiting, and the spinning threads take the time that this thread
needs. docs/decisions/0005-waiting-threads.md has the measurements.
"""

import os

# Variables with which a user decides about waiting: then nothing is changed.
CHOICES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
# libgomp: spin about 25 microseconds, then sleep. Without any spinning, threads that meet every few microseconds would
# sleep each time. Other OpenMP libraries read the policy alone.
WAITING = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "1000"}


def wait_passively() -> None:
    """Set the waiting of OpenMP's threads in the environment, for this process and its children.

    OpenMP reads it once, when it is loaded. If torch was imported before, only children are affected.
    """
    if not any(name in os.environ for name in CHOICES):
        os.environ.update(WAITING)
