"""Jobs that say where they were done; in a module that a process reads quickly."""

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Noted:
    name: str
    problem: str = ""

    def measure(self):
        import torch

        if self.problem:
            raise ZeroDivisionError(self.problem)
        return {"name": self.name, "process": os.getpid(), "threads": torch.get_num_threads()}
