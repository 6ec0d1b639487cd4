"""Compares every dataset of a state.h5 with the bytes that were saved, as h5py sees them.

usage: read_with_h5py.py STATE.h5 EXPECTED.json

EXPECTED.json: {"tensors": [{"path", "dtype", "shape", "bytes": file beside it}], "attributes": {}, "texts": {}}
Prints what is wrong, a line each, and exits 1 where anything is."""
import json
import os
import sys

import h5py
import numpy

TYPES = {"F32": "<f4", "F64": "<f8", "I64": "<i8", "U8": "|u1", "BF16": "<f4"}


def check_tensor(file, want, folder):
    dataset = file.get(want["path"])
    if not isinstance(dataset, h5py.Dataset):
        return "missing"
    if list(dataset.shape) != want["shape"]:
        return f"shape {dataset.shape}"
    if dataset.dtype != numpy.dtype(TYPES[want["dtype"]]):
        return f"type {dataset.dtype}"
    with open(os.path.join(folder, want["bytes"]), "rb") as source:
        stored = source.read()
    if want["dtype"] == "BF16":
        # h5py widens; which payload a NaN has then is HDF5's choice.
        wide = (numpy.frombuffer(stored, "<u2").astype("<u4") << 16).view("<f4").reshape(want["shape"])
        return None if numpy.array_equal(wide, dataset[()], equal_nan=True) else "other values"
    return None if numpy.asarray(dataset[()]).tobytes() == stored else "other values"


def problems_of(file, expected, folder):
    for want in expected["tensors"]:
        problem = check_tensor(file, want, folder)
        if problem:
            yield f"{want['path']}: {problem}"
    for name, value in expected["attributes"].items():
        if file.attrs.get(name) != value:
            yield f"attribute {name}: {file.attrs.get(name)}"
    for name, text in expected["texts"].items():
        if file["extra"][name][()] != text.encode():
            yield f"text {name}: {file['extra'][name][()]!r}"
    found = []
    file.visititems(lambda name, item: found.append("/" + name) if isinstance(item, h5py.Dataset) else None)
    known = {want["path"] for want in expected["tensors"]} | {"/extra/" + name for name in expected["texts"]}
    yield from (f"{name}: not expected" for name in found if name not in known)


def main():
    state, description = sys.argv[1:]
    with open(description) as source:
        expected = json.load(source)
    with h5py.File(state, "r") as file:
        problems = list(problems_of(file, expected, os.path.dirname(description)))
    print("\n".join(problems), end="\n" if problems else "")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
