"""A command that torchrun starts in several processes: they form a group, of which the first one speaks and writes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.constants import default_pg_timeout
from torch.distributed.rendezvous import rendezvous

from softshare._util.run_folder import RESULT, earlier_files, unfinished_folder
from softshare.distributed.group import ALONE, Group, world
from softshare.errors import ConfigError, NotAvailableError

CONNECTING = timedelta(minutes=2)  # to the store of torchrun, which is there before its processes unless it was killed
RESTARTS = "TORCHELASTIC_RESTART_COUNT"


def is_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


def is_restarted() -> bool:
    """Whether torchrun has started the processes again, because one of them failed."""
    return is_torchrun() and int(os.environ.get(RESTARTS, 0)) > 0


@contextlib.contextmanager
def processes(fsdp: bool = False) -> Iterator[Group]:
    """The processes that torchrun has started, each with its own GPU if there are any; without torchrun, this one."""
    if not is_torchrun():
        if fsdp:
            raise ConfigError(
                "--fsdp: expected several processes. Start them: torchrun --nproc-per-node N -m softshare"
            )
        yield ALONE
        return
    if has_gpus := torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    try:
        store, rank, size = next(rendezvous("env://", timeout=CONNECTING))
    except dist.DistError as problem:  # without a limit, a process whose torchrun was killed waits for half an hour
        raise NotAvailableError(f"expected torchrun, which has started this process, but {problem}") from None
    store.set_timeout(default_pg_timeout)
    # The store of torchrun outlives the processes: those that are started again must not find earlier addresses there.
    store = PrefixStore(f"softshare {os.environ.get(RESTARTS, 0)}", store)
    dist.init_process_group("cpu:gloo,cuda:nccl" if has_gpus else "gloo", store=store, rank=rank, world_size=size)
    yield world()
    dist.destroy_process_group()  # after an error the others may be gone, and would be waited for


def is_finished(folder: Path, group: Group) -> bool:
    """Whether the first process has finished the run before another one failed."""
    done = group.is_first and RESULT in earlier_files(folder) and not unfinished_folder(folder).exists()
    return bool(is_restarted() and group.first(done))
