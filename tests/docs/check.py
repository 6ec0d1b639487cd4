#!/usr/bin/env python3
"""Checks that the documents are true where a machine can tell:

  paths      what a document names below a folder of the checkout exists; links lead somewhere
  commands   every trireme command in a shell block has a subcommand and flags that the program's --help knows, and
             every ./bootstrap command is in bootstrap's usage
  settings   every `section.key` in backticks or after --set is a setting; YAML blocks are valid configurations
  messages   every heading of troubleshooting.md is a message of the sources
  text       plain ASCII

Usage: check.py CHECKOUT, with TRIREME_BIN naming the program; or check.py --self-test. Prints file:line for every
finding and returns 1 if there is one, 77 if there is no program to ask.
"""
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

# First parts of paths that belong to the checkout and not to a run or a machine.
TOPS = ("src", "include", "tests", "share", "cmake", "benchmarks", "slurm", "pbs", ".ci")
FILES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "CMakeLists.txt", "CMakePresets.json", "bootstrap")
SECTIONS = "run|model|data|train|optimizer|schedule|precision|parallel|offload|checkpoint|log|stop"
SETTING = re.compile(rf"(?:{SECTIONS})\.[a-z][a-z_0-9]*")
# Words of the documents that look like settings and are files.
NO_SETTINGS = re.compile(r"\.(?:hpp|cpp|py|md|yaml|jsonl|json|txt|h5|html|log)$")
# Messages of other programs that people look up here too.
FOREIGN = ("mpirun has detected an attempt to run as root", "There are not enough slots available in the system",
           "Illegal instruction")


def blocks(text):
    """Yields (language, number of the first line inside, lines) of every fenced block."""
    language, first, lines = None, 0, []
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("```"):
            if language is None:
                language, first, lines = line.strip()[3:], number + 1, []
            else:
                yield language, first, lines
                language = None
        elif language is not None:
            lines.append(line)


def prose(text):
    """The lines outside fenced blocks, with their numbers."""
    inside = False
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("```"):
            inside = not inside
        elif not inside:
            yield number, line


def check_text(text):
    for number, line in enumerate(text.split("\n"), 1):
        odd = sorted({c for c in line if ord(c) > 126 or (ord(c) < 32)})
        if odd:
            yield number, f"not plain ASCII: {', '.join(hex(ord(c)) for c in odd)}"


def exists(checkout, name):
    name = name.rstrip("/")
    if "*" in name:
        return any(checkout.glob(name))
    return (checkout / name).exists()


def is_path(word):
    if re.search(r"[<>{}$ ()=]|NNN", word):
        return False  # a pattern or code, not a path
    return word in FILES or (word.split("/")[0] in TOPS and "/" in word)


def check_paths(checkout, document, text):
    for number, line in prose(text):
        for word in re.findall(r"`([^`]+)`", line):
            if is_path(word) and not exists(checkout, word) and not exists(document.parent, word):
                yield number, f"there is no {word}"
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", line):
            if "://" not in target and not exists(document.parent, target):
                yield number, f"the link {target} leads nowhere"
        for anchor in re.findall(r"\]\(#([^)]+)\)", line):
            if anchor not in anchors(text):
                yield number, f"the link #{anchor} leads nowhere"


def anchors(text):
    titles = [line.lstrip("#").strip() for _, line in prose(text) if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


class Program:
    """What the real program answers, asked once a question."""

    def __init__(self, binary):
        self.binary = binary
        self.answers = {}

    def ask(self, *arguments):
        if arguments not in self.answers:
            done = subprocess.run([self.binary, *arguments], capture_output=True, text=True, timeout=30, check=False)
            self.answers[arguments] = (done.returncode, done.stdout, done.stderr)
        return self.answers[arguments]

    def subcommands(self, chain):
        _, out, _ = self.ask(*chain, "--help")
        part = out.partition("Subcommands:")[2]
        names = re.findall(r"^  ([a-z][a-z-]*(?:, [a-z][a-z-]*)*)  ", part, re.M)  # a name and its aliases
        return {name for listed in names for name in listed.split(", ")}

    def flags(self, chain):
        _, out, _ = self.ask(*chain, "--help")
        return set(re.findall(r"--[a-z][a-z-]*", out))

    def settings(self):
        _, out, _ = self.ask("config", "fields")
        return set(SETTING.findall(out))


def commands_of(lines, first):
    """Joins continued lines and yields (number, words) of each command, comments left out."""
    joined, start = "", 0
    for number, line in enumerate(lines, first):
        if not joined:
            start = number
        joined += line.rstrip("\\") if line.endswith("\\") else line
        if line.endswith("\\"):
            continue
        text, joined = joined, ""
        if text.strip() and not text.lstrip().startswith("#"):
            try:
                yield start, shlex.split(text, comments=True)
            except ValueError:
                continue  # shell syntax that is no command of ours
    return


def check_command(program, words):
    chain = []
    rest = list(words)
    while rest and rest[0] in program.subcommands(chain):
        chain.append(rest.pop(0))
    subcommands = program.subcommands(chain)
    if subcommands and not (rest and rest[0] in ("--help", "--version", "-h")):
        yield f"trireme {' '.join(chain)} has no {rest[0] if rest else 'meaning without a subcommand'}"
        return
    for word in rest:
        if word in (";", "||", "&&", "|"):
            break
        if word.startswith("--") and word.split("=")[0] not in program.flags(chain):
            yield f"trireme {' '.join(chain)} does not know {word}"


def check_commands(program, usage, text):
    for language, first, lines in blocks(text):
        if language not in ("sh", "bash"):
            continue
        for number, words in commands_of(lines, first):
            for at, word in enumerate(words):
                if word == "./bootstrap":
                    name = words[at + 1] if at + 1 < len(words) else ""
                    if not re.search(rf"^  {re.escape(name)}\b", usage, re.M):
                        yield number, f"./bootstrap has no '{name}'"
                if re.search(r"(^|/)trireme$", word):
                    for what in check_command(program, words[at + 1:]):
                        yield number, what
    for number, line in prose(text):
        for code in re.findall(r"`((?:build/release/bin/)?trireme [^`]+)`", line):
            words = code.split()[1:]
            if words[0] in ("...", "env"):
                continue
            for what in check_command(program, words):
                yield number, what


def check_settings(program, text):
    known = program.settings()
    for number, line in enumerate(text.split("\n"), 1):
        words = re.findall(rf"--set ({SETTING.pattern})", line)
        words += [word for word in re.findall(r"`([^`\s:=]+)", line)
                  if SETTING.fullmatch(word) and not NO_SETTINGS.search(word)]
        for word in words:
            if word not in known:
                yield number, f"{word} is no setting"


def check_yaml(program, text):
    for language, first, lines in blocks(text):
        if language != "yaml":
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "block.yaml"
            path.write_text("\n".join(lines))
            code, _, error = program.ask("config", "show", str(path))
            if code != 0:
                yield first, f"trireme refuses this configuration: {error.strip()}"


def source_text(checkout):
    """The sources with neighbouring string literals joined, so that a message stands in one piece."""
    text = ""
    for folder in ("src", "include", "cmake"):
        for path in sorted((checkout / folder).rglob("*")):
            if path.suffix in (".cpp", ".hpp", ".cmake"):
                text += path.read_text(encoding="utf-8")
    text = re.sub(r'"\s*\n\s*"', "", text)
    bootstrap = checkout / "bootstrap"
    return text + (bootstrap.read_text(encoding="utf-8") if bootstrap.exists() else "")


def check_messages(sources, text):
    for number, line in prose(text):
        found = re.match(r"### `(.+)`$", line)
        if not found or found.group(1).startswith(FOREIGN) or "errno" in found.group(1):
            continue
        for piece in found.group(1).removeprefix("bootstrap: ").split("..."):
            if piece.strip(" ,;:.'()") and piece.strip() not in sources:
                yield number, f"no message of the sources has '{piece.strip()}'"


def documents(checkout):
    for pattern in ("*.md", "share/doc/*.md", "share/doc/design/*.md"):
        yield from sorted(checkout.glob(pattern))


def check(checkout, program):
    bootstrap = checkout / "bootstrap"
    usage = bootstrap.read_text(encoding="utf-8").partition("cat <<'END'")[2].partition("\nEND")[0]
    sources = source_text(checkout)
    findings = []
    for document in documents(checkout):
        text = document.read_text(encoding="utf-8")
        found = [*check_text(text), *check_paths(checkout, document, text), *check_commands(program, usage, text),
                 *check_settings(program, text), *check_yaml(program, text)]
        if document.name == "troubleshooting.md":
            found += check_messages(sources, text)
        findings += [f"{document.relative_to(checkout)}:{number}: {what}" for number, what in sorted(found)]
    return findings


class Pretended(Program):
    """A program with one command, for the self-test."""

    def __init__(self):
        super().__init__("")

    def ask(self, *arguments):
        if arguments == ("config", "fields"):
            return 0, "  run.name  text\n  train.max_steps  integer\n", ""
        if arguments[0] == "config":
            good = "wrong" not in pathlib.Path(arguments[2]).read_text()
            return (0, "", "") if good else (64, "", "unknown key")
        if arguments == ("train", "--help"):
            return 0, "Options:\n  --set TEXT\n", ""
        return 0, "Subcommands:\n  train, fit  trains\n  config      shows\n", ""


def self_test():
    """Every rule is seen to fail, and innocent look-alikes to pass."""
    cases = [
        # document, what a finding must say (None: no finding)
        ("see `src/a.cpp`", None),
        ("see `src/b.cpp`", "no src/b.cpp"),
        ("see `src/*.hpp`", "no src/*.hpp"),
        ("see `src/<room>/x.cpp` and `runs/demo`", None),
        ("[x](nowhere.md)", "leads nowhere"),
        ("## A title\n[x](#a-title)", None),
        ("[x](#another)", "leads nowhere"),
        ("```sh\n./bootstrap demo\nmpirun -np 2 bin/trireme train a.yaml --set run.name=x  # why\n```", None),
        ("```sh\n./bootstrap dance\n```", "no 'dance'"),
        ("```sh\nbin/trireme dance\n```", "has no dance"),
        ("```sh\nbin/trireme train a.yaml \\\n  --flag\n```", "does not know --flag"),
        ("```cpp\ntrireme dance\n```", None),
        ("`trireme dance x`", "has no dance"),
        ("`run.name` in `run.py`", None),
        ("`run.nme`", "is no setting"),
        ("--set train.steps=3", "is no setting"),
        ("```yaml\nwrong: 1\n```", "refuses"),
        ("a \u2014 dash", "ASCII"),
    ]
    wrong = 0
    for text, expected in cases:
        with tempfile.TemporaryDirectory() as folder:
            checkout = pathlib.Path(folder)
            (checkout / "src").mkdir()
            (checkout / "src/a.cpp").write_text('fail("one message "\n     "in two parts");')
            (checkout / "bootstrap").write_text("cat <<'END'\n  demo   shows\nEND\n")
            (checkout / "README.md").write_text(text, encoding="utf-8")
            findings = check(checkout, Pretended())
            good = not findings if expected is None else len(findings) == 1 and expected in findings[0]
            if not good:
                wrong += 1
                print(f"{text!r}: expected {expected!r}, found {findings}")
            for heading, known in (("message in two", True), ("one ... parts", True), ("no message", False)):
                if bool(list(check_messages(source_text(checkout), f"### `{heading}`"))) == known:
                    wrong += 1
                    print(f"the heading '{heading}' is judged wrongly")
    return 1 if wrong else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    binary = os.environ.get("TRIREME_BIN", "")
    if not binary or not os.access(binary, os.X_OK):
        print(f"TRIREME_BIN='{binary}' is no program")
        return 77
    findings = check(pathlib.Path(sys.argv[1]).resolve(), Program(binary))
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
