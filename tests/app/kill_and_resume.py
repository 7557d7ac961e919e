"""Kills a run at random points and resumes it."""

import os
import random
import signal
import subprocess


def killed_ten_times(command, output, whole, seconds, seed):
    """Runs command until SIGKILL has ended it ten times, after 10 to 80 % of `seconds`; between the kills it goes
    on where it was. Where it gets done earlier (its output is `whole`), it begins again. Returns the number of
    kills, 10 unless the run is too fast to be killed."""
    chance = random.Random(seed)
    n_kills = 0
    for _ in range(200):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(timeout=chance.uniform(0.1, 0.8) * seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            n_kills += process.wait() == -signal.SIGKILL
        if n_kills == 10:
            break
        if os.path.exists(output):
            with open(output, "rb") as file:
                done = file.read() == whole
            if done:
                os.remove(output)
    return n_kills
