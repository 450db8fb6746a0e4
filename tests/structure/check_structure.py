#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on what the project's shape does not allow: an include against the order of the layers, LibTorch in
torch-free folders, torch/torch.h in a header, a public header that needs a private one, a source without its
SPDX line or with other characters than ASCII, a promise whose test does not exist.

usage: check_structure.py REPOSITORY
       check_structure.py --self-test REPOSITORY    (every rule finds its violation, made in a copy)
"""
import re
import shutil
import sys
import tempfile
from pathlib import Path

# Each layer may include itself and what stands in its row: docs/design.md, "Layers".
BELOW = {"base": [], "plan": ["base"]}
BELOW["comm"] = ["plan", *BELOW["plan"]]
BELOW["autograd"] = ["comm", *BELOW["comm"]]
BELOW["sharding"] = ["autograd", *BELOW["autograd"]]
BELOW["parallel"] = ["sharding", *BELOW["sharding"]]
BELOW["train"] = ["parallel", *BELOW["parallel"]]
BELOW["inference"] = ["parallel", *BELOW["parallel"]]
BELOW["models"] = ["train", "inference", *BELOW["train"]]

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
TORCH = re.compile(r"(torch|ATen|c10|caffe2)/")
STANDARD = re.compile(r"[a-z0-9_]+$|(sys/)?[a-z0-9_]+\.h$")  # <vector>, <unistd.h>, <sys/wait.h>
SOURCES = {".hpp", ".cpp", ".py", ".cmake", ".txt"}
FOLDERS = ["espalier", "apps", "python", "tests", "bench", "examples", "cmake", "scripts"]  # of sources


def includes(path):
    return INCLUDE.findall(path.read_text(encoding="utf-8"))


def layer_of(include):
    """espalier/plan/seed.hpp -> plan; None if it is not one of ours."""
    parts = include.split("/")
    return parts[1] if parts[0] == "espalier" and len(parts) > 2 else None


def check_layers(name, header, included):
    """name: a file of the library, as it is included."""
    layer = layer_of(name)
    if layer not in BELOW:
        yield f"{name}: espalier/{layer} is not a layer; legal: {', '.join(BELOW)}"
        return
    for target in included:
        other = layer_of(target)
        if target.startswith("espalier/") and other != layer and other not in BELOW[layer]:
            yield f"{name}: includes {target}; {layer} may only include {', '.join([layer, *BELOW[layer]])}"
        if other == layer == "parallel" and target.split("/")[2] != name.split("/")[2]:
            yield f"{name}: includes {target}; the folders of parallel do not include each other"
        if layer in ("base", "plan"):
            if TORCH.match(target) or target.startswith("mpi"):
                yield f"{name}: includes {target}; {layer} knows neither LibTorch nor MPI"
        if target.startswith("mpi") and "/comm/backends/" not in name:
            yield f"{name}: includes {target}; only comm/backends sees MPI"
        if target.startswith("torch/csrc/") and target != "torch/csrc/autograd/autograd.h":
            c10d = target.startswith("torch/csrc/distributed/c10d/")
            if layer != ("comm" if c10d else "autograd"):
                yield f"{name}: includes {target}; LibTorch's internals belong in autograd, c10d in comm"
        if header and target in ("torch/torch.h", "torch/all.h", "torch/extension.h"):
            yield f"{name}: includes {target}; headers include what they use"


def public_headers(root):
    """What the HEADERS of espalier_sources() install, as it is included."""
    for listing in sorted((root / "espalier").rglob("CMakeLists.txt")):
        text = re.sub(r"#.*", "", listing.read_text(encoding="utf-8"))
        for call in re.findall(r"espalier_sources\(([^)]*)\)", text):
            names = call.split("HEADERS", 1)[1].split("SOURCES")[0].split() if "HEADERS" in call else []
            yield from (str((listing.parent / name).relative_to(root)) for name in names)


def check_promises(root):
    """Every `Suite.Test` in docs/promises.md is one of GoogleTest's or ctest's."""
    text = "\n".join(
        path.read_text(encoding="utf-8")
        for path in sorted((root / "tests").rglob("*"))
        if path.suffix in (".cpp", ".hpp", ".py") or path.name == "CMakeLists.txt"
    )
    there = {".".join(names) for names in re.findall(r"\bTEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\s*\)", text)}
    there |= set(re.findall(r"\b[A-Z]\w+\.[A-Z]\w+\b", text))
    for path in (root / "tests/comm").glob("*_cases.cpp"):  # run over every backend
        names = re.findall(r'\{(?:\.name = )?"([A-Z]\w+)", ?\s*(?:\.sizes = )?\{', path.read_text(encoding="utf-8"))
        names += re.findall(r'\{\.name = "([A-Z]\w+)"', path.read_text(encoding="utf-8"))
        there |= {f"Conformance.{name}" for name in names}
    for name in re.findall(r"`([A-Z]\w+\.[A-Z]\w+)`", (root / "docs/promises.md").read_text(encoding="utf-8")):
        if name not in there:
            yield f"docs/promises.md: names the test {name}, which does not exist"


def check(root):
    yield from check_promises(root)
    public = set(public_headers(root))
    for path in sorted((root / "espalier").rglob("*.?pp")):
        name = str(path.relative_to(root))
        yield from check_layers(name, path.suffix == ".hpp", includes(path))
        if name not in public:
            continue
        for target in includes(path):
            if target.startswith("espalier/") and target not in public:
                yield f"{name}: is public, but includes {target}, which is not installed"
            if target.startswith(("fmt/", "nlohmann/")):
                yield f"{name}: includes {target}; public headers need no library of the system's"
            if layer_of(name) == "comm" and TORCH.match(target) and target != "ATen/core/Tensor.h":
                yield f"{name}: includes {target}; of LibTorch, public headers of comm include ATen/core/Tensor.h alone"
            if layer_of(name) in ("base", "plan") and not target.startswith("espalier/") and not STANDARD.match(target):
                yield f"{name}: includes {target}; public headers of {layer_of(name)} include the standard library alone"
    for name in sorted(public):
        if not (root / name).is_file():
            yield f"{name}: is listed as a public header, but does not exist"

    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            name = str(path.relative_to(root))
            listed = path.suffix in SOURCES and (path.suffix != ".txt" or path.name == "CMakeLists.txt")
            if not path.is_file() or not (listed or path.parent.name == "scripts"):
                continue
            text = path.read_bytes()
            if b"SPDX-License-Identifier: Apache-2.0" not in b"\n".join(text.split(b"\n", 2)[:2]):
                yield f"{name}: the SPDX line is missing at its top"
            if not text.isascii():
                yield f"{name}: line {1 + next(i for i, line in enumerate(text.splitlines()) if not line.isascii())} is not ASCII"


# A file, the line to append (None: empty the file), what the complaint must say.
VIOLATIONS = [
    ("espalier/base/error.hpp", '#include "espalier/plan/seed.hpp"', "base may only include base"),
    ("espalier/plan/seed.hpp", '#include "espalier/comm/world.hpp"', "plan may only include plan, base"),
    ("espalier/plan/seed.cpp", "#include <ATen/core/Tensor.h>", "plan knows neither LibTorch nor MPI"),
    ("espalier/plan/seed.hpp", "#include <fmt/format.h>", "include the standard library alone"),
    ("espalier/train/engine.hpp", "#include <fmt/format.h>", "need no library of the system's"),
    ("espalier/comm/world.hpp", "#include <torch/torch.h>", "headers include what they use"),
    ("espalier/comm/world.hpp", "#include <ATen/Functions.h>", "ATen/core/Tensor.h alone"),
    ("espalier/comm/world.hpp", '#include "espalier/comm/communicator.hpp"', "which is not installed"),
    ("espalier/comm/work.cpp", "#include <mpi.h>", "only comm/backends sees MPI"),
    ("espalier/train/lr_schedule.cpp", "#include <torch/csrc/autograd/function.h>", "belong in autograd"),
    ("espalier/parallel/data/made_up.hpp", '#include "espalier/parallel/zero/x.hpp"', "do not include each other"),
    ("espalier/utils/made_up.hpp", "int x;", "espalier/utils is not a layer"),
    ("espalier/base/log.cpp", "// caf\u00e9", "is not ASCII"),
    ("espalier/base/log.cpp", None, "the SPDX line is missing"),
    ("docs/promises.md", "| It is kept. | `Made" + ".UpByNobody` |", "which does not exist"),
]


def self_test(root):
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for part in [*FOLDERS, "docs"]:
            shutil.copytree(root / part, copy / part)
        for name, line, complaint in VIOLATIONS:
            path = copy / name
            before = path.read_bytes() if path.exists() else None
            path.parent.mkdir(parents=True, exist_ok=True)
            text = before or b"// SPDX-License-Identifier: Apache-2.0\n"
            path.write_bytes(b"" if line is None else text + line.encode() + b"\n")
            if not any(name in found and complaint in found for found in check(copy)):
                yield f"self-test: {line!r} in {name} was not found"
            path.unlink() if before is None else path.write_bytes(before)


def main():
    root = Path(sys.argv[-1])
    found = list(self_test(root) if "--self-test" in sys.argv else check(root))
    print("\n".join(found) if found else "structure: nothing found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
