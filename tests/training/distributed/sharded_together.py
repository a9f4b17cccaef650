"""The same with FSDP2 on CPUs, for tests alone: accelerate shards over GPUs only, so this takes its word for it."""

from __future__ import annotations

import json
import sys
from typing import Any

from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType

from sinkscope.training.distributed import processes
from tests.training.distributed.trained_together import main

whole_state = AcceleratorState.__init__


def sharding(self: AcceleratorState, *args: Any, fsdp_plugin: Any = None, **kwargs: Any) -> None:
    whole_state(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
    if fsdp_plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
        self.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP
        self.fsdp_plugin = fsdp_plugin


def on_cpus() -> None:
    AcceleratorState.__init__ = sharding
    processes.require_gpus = lambda device: None


if __name__ == "__main__":
    on_cpus()
    main([json.loads(task) for task in sys.argv[1:]])
