#!/usr/bin/env python3
"""Checks that the rooms keep the rules of the house that a machine can see:

  order    a room includes only itself and the rooms above it
  walls    LibTorch only in the rooms that compute with it, CLI11 only in app, YAML, JSON and spdlog only in .cpp files
  exits    nothing outside app ends the process: libraries throw, and main decides

Usage: check.py CHECKOUT ROOM.. (the rooms in their order), or check.py --self-test. Prints file:line for every finding
and returns 1 if there is one. A rule is bent by writing `house: allow` and the reason in a comment on the line.
"""
import pathlib
import re
import sys
import tempfile

TORCH_ROOMS = {"model", "parallel", "optim", "train", "data"}
TORCH = re.compile(r"^(torch|ATen|c10|caffe2)/")
# json_fwd.hpp is made for headers: it only declares.
SOURCE_ONLY = re.compile(r"^(yaml-cpp|nlohmann|spdlog)/(?!json_fwd\.hpp)")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
# Calls, also with std:: or :: before them, but no members, other namespaces, declarations or longer names.
EXITS = re.compile(r"(?<![\w.>:])(?<!void )(?:std::|::)?(exit|_exit|_Exit|quick_exit|abort|terminate|MPI_Abort)\s*\(")


def without_comments_and_strings(text):
    """Blanks them out, keeping every line where it was."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\((?:.*?)\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', re.S)
    return pattern.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)


def room_of(path, checkout):
    """The room that a file belongs to; None for the umbrella header and what lies beside the rooms."""
    parts = path.relative_to(checkout).parts
    inside = parts[1:] if parts[0] == "src" else parts[2:]
    return inside[0] if len(inside) > 1 else None


def check_file(path, room, rooms):
    text = path.read_text(encoding="utf-8")
    lines = text.split("\n")
    code = without_comments_and_strings(text).split("\n")
    for number, line in enumerate(lines, 1):
        if "house: allow" in line:
            continue
        found = INCLUDE.match(line)
        if found:
            name = found.group(1)
            parts = name.split("/")
            other = parts[1] if parts[0] == "trireme" and len(parts) > 2 else parts[0] if len(parts) > 1 else None
            if name == "trireme/trireme.hpp":
                yield number, "rooms do not include the umbrella header"
            elif other in rooms and rooms.index(other) > rooms.index(room):
                yield number, f"{room} includes {name}: {other} is below it in the list of rooms"
            if TORCH.match(name) and room not in TORCH_ROOMS:
                yield number, f"{room} includes {name}: only {', '.join(sorted(TORCH_ROOMS))} may use LibTorch"
            if parts[0] == "CLI" and room != "app":
                yield number, f"{room} includes {name}: only app reads command lines"
            if SOURCE_ONLY.match(name) and path.suffix != ".cpp":
                yield number, f"{name} in a header: it costs every file that includes this one; use it in a .cpp file"
        elif room != "app":
            call = EXITS.search(code[number - 1])
            if call:
                yield number, f"{call.group(1)}() outside app: throw trireme::Error and let main decide"


def check(checkout, rooms):
    findings = []
    for folder in (checkout / "include" / "trireme", checkout / "src"):
        for path in sorted(folder.rglob("*.[ch]pp")):
            room = room_of(path, checkout)
            if room is None:
                continue
            if room not in rooms:
                findings.append(f"{path.relative_to(checkout)}: there is no room {room}; the list is in CMakeLists.txt")
                continue
            findings += [f"{path.relative_to(checkout)}:{number}: {what}" for number, what in check_file(path, room, rooms)]
    return findings


def self_test():
    """Every rule is seen to fail, and innocent look-alikes to pass."""
    rooms = ["base", "config", "model", "app"]
    cases = [
        # file, content, what the finding must say (None: no finding)
        ("src/base/a.cpp", '#include "trireme/model/m.hpp"', "below it"),
        ("src/base/b.cpp", '#include "model/private.hpp"', "below it"),
        ("include/trireme/model/c.hpp", '#include "trireme/base/m.hpp"', None),
        ("src/config/d.cpp", "#include <ATen/ATen.h>", "LibTorch"),
        ("src/model/e.cpp", "#include <torch/torch.h>", None),
        ("src/config/f.cpp", "#include <CLI/CLI.hpp>", "command lines"),
        ("src/app/g.cpp", "#include <CLI/CLI.hpp>\nint main() { std::exit(1); }", None),
        ("src/config/h.cpp", "#include <yaml-cpp/yaml.h>", None),
        ("include/trireme/config/i.hpp", "#include <yaml-cpp/yaml.h>", "in a header"),
        ("src/base/j.cpp", "void f() { std::exit(1); }", "exit() outside app"),
        ("src/base/k.cpp", "void f() { MPI_Abort(w, 1); }", "MPI_Abort() outside app"),
        ("src/base/l.cpp", '// exit(1)\nconst char* s = "abort()"; void g() { x.exit(1); on_exit(2); my::abort(); }', None),
        ("include/trireme/base/p.hpp", "struct S { [[noreturn]] void abort(int code); };", None),
        ("src/base/m.cpp", "void f() { abort(); }  // house: allow, after a signal nothing else is safe", None),
        ("src/cellar/n.cpp", "", "no room cellar"),
        ("include/trireme/trireme.hpp", '#include "trireme/app/x.hpp"', None),
        ("src/base/o.cpp", "#include <trireme/trireme.hpp>", "umbrella"),
    ]
    wrong = 0
    for name, content, expected in cases:
        with tempfile.TemporaryDirectory() as folder:
            checkout = pathlib.Path(folder)
            (checkout / name).parent.mkdir(parents=True)
            (checkout / name).write_text(content)
            findings = check(checkout, rooms)
            good = not findings if expected is None else len(findings) == 1 and expected in findings[0]
            if not good:
                wrong += 1
                print(f"{name}: expected {expected!r}, found {findings}")
    return 1 if wrong else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    findings = check(pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:])
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
