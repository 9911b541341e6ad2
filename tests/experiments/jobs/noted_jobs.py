"""Jobs that say where they were done; in a module that a process reads quickly."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Noted:
    name: str
    problem: str = ""

    def measure(self):
        import torch

        if self.problem:
            raise ZeroDivisionError(self.problem)
        return {"name": self.name, "process": os.getpid(), "threads": torch.get_num_threads()}


@dataclass(frozen=True)
class Killed:
    name: str

    def measure(self):
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Asleep:
    """Writes its process's number into a file, whole, and sleeps."""

    name: str

    def measure(self):
        Path(self.name + ".new").write_text(str(os.getpid()))
        os.rename(self.name + ".new", self.name)
        time.sleep(600)
        return {}
