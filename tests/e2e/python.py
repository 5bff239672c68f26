#!/usr/bin/env python3
"""The Python package picnic-lab: its types, its tests, its wheel and the notebook.

    python.py                     all steps
    python.py --keep FOLDER       also the executed notebook and its plot, as SVG, into FOLDER

Creates python/.venv with pandas, matplotlib, mypy, ruff and nbclient from PyPI, once. The wheel is
built and installed offline. `$PICNIC`, or target/debug/picnic, is the program.

Exit code 77 means skipped, the reason being the last line printed.
"""

import argparse
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python"
VENV = PACKAGE / ".venv"
PYTHON = VENV / "bin" / "python"
NOTEBOOK = ROOT / "examples/notebooks/first_answer.ipynb"
# What pip says if it cannot reach PyPI.
NO_NETWORK = re.compile(r"NewConnectionError|NameResolutionError|ConnectTimeoutError|ProxyError|"
                        r"ReadTimeoutError|ProtocolError|IncompleteRead|HTTP error 5\d\d|5\d\d Server Error")
# Seconds for the start of the notebook and for a cell, on a busy machine.
CELL_S = 900

EXECUTE = """
import re, sys
import nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
first = '''%config InlineBackend.figure_formats = ["svg"]
import matplotlib
matplotlib.rcParams["svg.fonttype"] = "none"'''
notebook.cells.insert(0, nbformat.v4.new_code_cell(first))
patience = int(sys.argv[3])
client = NotebookClient(notebook, timeout=patience, startup_timeout=patience, kernel_name="python3")
client.execute()
outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
plots = [output.data["image/svg+xml"] for output in outputs if "image/svg+xml" in output.get("data", {})]
text = "".join(output.get("text", "") for output in outputs)
if len(plots) != 1:
    sys.exit(f"failed: found {len(plots)} plots, expected 1")
# On a busy machine the difference may be too small for a verdict.
if not re.search(r"candidate: (worse|too noisy), -\\d+", text):
    sys.exit(f"failed: found no verdict in the output: {text}")
plot = re.sub("<metadata>.*</metadata>", "", plots[0], flags=re.DOTALL)
open(sys.argv[2] + "/first-answer.svg", "w").write(plot)
nbformat.write(notebook, sys.argv[2] + "/first_answer.ipynb")
"""


def step(name, words, **options):
    """Runs a command, its output shown if it fails."""
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode:
        print(done.stdout)
        sys.exit(f"failed: {name}")
    print(f"{name}: {done.stdout.strip().splitlines()[-1] if done.stdout.strip() else 'good'}")
    return done.stdout


def environment(copy):
    """Makes the virtual environment if its packages changed; why that cannot be, or nothing."""
    wanted = hashlib.sha256((PACKAGE / "pyproject.toml").read_bytes()).hexdigest()
    stamp = VENV / "installed"
    if stamp.exists() and stamp.read_text() == wanted:
        return None
    if not PYTHON.exists():
        made = subprocess.run([sys.executable, "-m", "venv", VENV], capture_output=True, text=True)
        if made.returncode:
            shutil.rmtree(VENV, ignore_errors=True)
            return "Python has no module venv: try `apt-get install python3-venv`"
    install = [PYTHON, "-m", "pip", "install", "--disable-pip-version-check", "--retries", "2",
               "--timeout", "20", f"{copy}[test]"]
    done = subprocess.run(install, capture_output=True, text=True)
    if done.returncode:
        if NO_NETWORK.search(done.stdout + done.stderr):
            return "pip cannot reach PyPI"
        sys.exit(f"failed: {done.stderr}")
    stamp.write_text(wanted)
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--keep", type=pathlib.Path)
    args = parser.parse_args()
    program = pathlib.Path(os.environ.get("PICNIC", ROOT / "target/debug/picnic")).resolve()
    if not program.exists():
        print(f"{program} is not there: cargo build")
        return 77
    with tempfile.TemporaryDirectory(prefix="picnic-python-") as temporary:
        folder = pathlib.Path(temporary)
        # A build writes beside the sources.
        copy = folder / "source"
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns(".*", "__pycache__"))
        why = environment(copy)
        if why:
            print(why)
            return 77
        path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
        # Tasks are admitted under the built-in costs: a busy machine measures others, for minutes.
        variables = {**os.environ, "PICNIC": str(program), "PATH": path, "HOME": temporary,
                     "XDG_CACHE_HOME": "/dev/null", "MPLCONFIGDIR": f"{temporary}/matplotlib",
                     "IPYTHONDIR": f"{temporary}/ipython"}
        for name in ("PYTHONPATH", "MPLBACKEND"):
            variables.pop(name, None)
        schema = subprocess.run([program, "schema"], capture_output=True, text=True, check=True)
        step("types", [PYTHON, "generate.py", "--check"], cwd=PACKAGE, input=schema.stdout)
        # A change of a type must not pass.
        changed = subprocess.run([PYTHON, "generate.py", "--check"], cwd=PACKAGE, text=True,
                                 input=schema.stdout.replace('"duration_s"', '"duration_ms"'),
                                 stdout=subprocess.DEVNULL, check=False)
        if changed.returncode != 1:
            sys.exit("failed: another schema passes as the same")
        lint = [PYTHON, "-m", "ruff", "check", "--no-cache", "--output-format", "concise", "."]
        step("ruff", lint, cwd=PACKAGE)
        step("format", [*lint[:3], "format", "--no-cache", "--check", "."], cwd=PACKAGE)
        step("mypy", [PYTHON, "-m", "mypy", "--cache-dir", folder / "mypy"], cwd=PACKAGE)
        pip = [PYTHON, "-m", "pip", "--disable-pip-version-check"]
        wheels = folder / "wheels"
        alone = ["--no-deps", "--no-index", "--no-build-isolation"]
        step("wheel", [*pip, "wheel", *alone, "--wheel-dir", wheels, copy])
        wheel, = wheels.iterdir()
        if not re.fullmatch(r"picnic_lab-[\d.]+-py3-none-any\.whl", wheel.name):
            sys.exit(f"failed: found {wheel.name}, expected a pure wheel")
        step("install", [*pip, "install", *alone[:2], "--force-reinstall", wheel])
        step("tests", [PYTHON, "-m", "unittest", "discover", "-s", PACKAGE / "tests"],
             cwd=folder, env={**variables, "MPLBACKEND": "Agg"})
        kept = args.keep.resolve() if args.keep else folder
        kept.mkdir(parents=True, exist_ok=True)
        step("notebook", [PYTHON, "-c", EXECUTE, NOTEBOOK, kept, CELL_S], cwd=folder, env=variables)
    return 0


if __name__ == "__main__":
    sys.exit(main())
