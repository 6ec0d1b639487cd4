#!/usr/bin/env python3
"""Saves and loads fp32 tensors with another library and prints seconds as one JSON line.

    peers.py torch.save|safetensors FOLDER BYTES              one process
    torchrun --nproc_per_node 2 peers.py dcp FOLDER BYTES     each tensor sharded over the ranks

The save counts until every file is durable; the load starts with nothing of the files in the page cache.
"""
import json
import os
import pathlib
import shutil
import sys
import time

import torch
import torch.distributed as dist

TENSORS = 144


def files(folder):
    return [path for path in pathlib.Path(folder).rglob("*") if path.is_file()]


def each(folder, action):
    for path in files(folder):
        fd = os.open(path, os.O_RDONLY)
        action(fd)
        os.close(fd)


def single(method, folder, elements):
    state = {f"unit.{i}": torch.rand(elements) for i in range(TENSORS)}
    if method == "torch.save":
        path = folder / "state.pt"
        return lambda: torch.save(state, path), lambda: torch.load(path, weights_only=True)
    from safetensors.torch import load_file, save_file

    path = folder / "state.safetensors"
    # Mapped pages are read when they are touched, so they are.
    return lambda: save_file(state, path), lambda: [tensor.clone() for tensor in load_file(path).values()]


def sharded(folder, elements):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    state = {f"unit.{i}": distribute_tensor(torch.rand(elements), mesh, [Shard(0)]) for i in range(TENSORS)}
    return lambda: dcp.save(state, checkpoint_id=str(folder)), lambda: dcp.load(state, checkpoint_id=str(folder))


def main(method, where, num_bytes):
    folder = pathlib.Path(where, f"peer-{method}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    elements = int(num_bytes) // 4 // TENSORS
    save, load = sharded(folder, elements) if method == "dcp" else single(method, folder, elements)
    rank = dist.get_rank() if dist.is_initialized() else 0
    barrier = dist.barrier if dist.is_initialized() else lambda: None

    def timed(*calls):
        barrier()
        start = time.perf_counter()
        for call in calls:
            call()
        barrier()
        return time.perf_counter() - start

    saved = timed(save, barrier, lambda: rank == 0 and each(folder, os.fsync))
    if rank == 0:
        each(folder, lambda fd: os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED))
    loaded = timed(load)
    if rank == 0:
        print(json.dumps({"bytes": 4 * elements * TENSORS, "save": saved, "load": loaded}), flush=True)
        shutil.rmtree(folder)
    barrier()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
