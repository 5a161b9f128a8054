"""What tests send to worker processes; they import this module, which is to cost little."""

import os
import signal


def threads(_):
    """Of torch and of each library."""
    import torch
    from threadpoolctl import threadpool_info

    return {torch.get_num_threads(), *(library["num_threads"] for library in threadpool_info())}


def dies_once(marker):
    """Takes its process along, the first time."""
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return marker.name


def dies(_):
    os.kill(os.getpid(), signal.SIGKILL)
