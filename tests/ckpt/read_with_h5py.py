"""Compares every dataset of a checkpoint's files with the bytes that were saved, as h5py sees them.

usage: read_with_h5py.py STATE.h5.. EXPECTED.json
With several files a tensor may lie in them in parts, flat datasets NAME/FIRST-LAST.

EXPECTED.json: {"tensors": [{"path", "dtype", "shape", "bytes": file beside it}], "attributes": {}, "texts": {}}
Prints what is wrong, a line each, and exits 1 where anything is."""
import json
import os
import sys

import h5py
import numpy

TYPES = {"F32": "<f4", "F64": "<f8", "I64": "<i8", "U8": "|u1", "BF16": "<f4"}


def parts_of(path, files):
    """Returns (first, last, values) of every run of a tensor's elements."""
    for file in files:
        group = file.get(path)
        for name, part in group.items() if isinstance(group, h5py.Group) else ():
            first, last = map(int, name.split("-"))
            yield first, last, part[()]


def tensor_of(want, files):
    """Returns the tensor's values, or what is wrong with it."""
    for file in files:
        whole = file.get(want["path"])
        if isinstance(whole, h5py.Dataset):
            return whole[()] if list(whole.shape) == want["shape"] else f"shape {whole.shape}"
    parts = sorted(parts_of(want["path"], files), key=lambda part: part[0])
    if not parts:
        return "missing"
    ends = [0] + [last + 1 for _, last, _ in parts]
    if [first for first, _, _ in parts] != ends[:-1] or ends[-1] != numpy.prod(want["shape"]):
        return "parts that do not tile it"
    return numpy.concatenate([values for _, _, values in parts]).reshape(want["shape"])


def check_tensor(files, want, folder):
    found = tensor_of(want, files)
    if isinstance(found, str):
        return found
    if found.dtype != numpy.dtype(TYPES[want["dtype"]]):
        return f"type {found.dtype}"
    with open(os.path.join(folder, want["bytes"]), "rb") as source:
        stored = source.read()
    if want["dtype"] == "BF16":
        # h5py widens; which payload a NaN has then is HDF5's choice.
        wide = (numpy.frombuffer(stored, "<u2").astype("<u4") << 16).view("<f4").reshape(want["shape"])
        return None if numpy.array_equal(wide, found, equal_nan=True) else "other values"
    return None if numpy.asarray(found).tobytes() == stored else "other values"


def problems_of(files, expected, folder):
    for want in expected["tensors"]:
        problem = check_tensor(files, want, folder)
        if problem:
            yield f"{want['path']}: {problem}"
    for file in files:
        for name, value in expected["attributes"].items():
            if file.attrs.get(name) != value:
                yield f"{file.filename}: attribute {name}: {file.attrs.get(name)}"
    for name, text in expected["texts"].items():
        if files[0]["extra"][name][()] != text.encode():
            yield f"text {name}: {files[0]['extra'][name][()]!r}"
    known = {want["path"] for want in expected["tensors"]} | {"/extra/" + name for name in expected["texts"]}
    for file in files:
        found = []
        file.visititems(lambda name, item: found.append("/" + name) if isinstance(item, h5py.Dataset) else None)
        for name in found:
            if name not in known and (len(files) == 1 or os.path.dirname(name) not in known):
                yield f"{file.filename}: {name}: not expected"


def main():
    *states, description = sys.argv[1:]
    with open(description) as source:
        expected = json.load(source)
    files = [h5py.File(state, "r") for state in states]
    problems = list(problems_of(files, expected, os.path.dirname(description)))
    print("\n".join(problems), end="\n" if problems else "")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
