"""Isolation and five NICs in a virtual machine of eight cores: see README.md.

    scripts/e2e guest                  boots the machine and checks its report
    scripts/e2e guest --keep FOLDER    also keeps the guest's report
    scripts/e2e guest --told FILE      checks an earlier report

Exit codes: 0 good, 1 failed, 2 usage, 77 skipped for the reason printed.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import check
import guest
from judge import Wrong

ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "picnic/guest"


def parse():
    parser = argparse.ArgumentParser(
        description="Isolation and five NICs in a virtual machine of eight cores.")
    parser.add_argument("--keep", type=pathlib.Path, metavar="FOLDER",
                        help="keep the guest's console and results in this folder")
    parser.add_argument("--told", type=pathlib.Path, metavar="FILE",
                        help="judge the results of an earlier guest, and start none")
    parser.add_argument("--picnic", type=pathlib.Path, metavar="FILE",
                        default=ROOT / "target/debug/picnic", help="program to test")
    parser.add_argument("--kernels", type=pathlib.Path, metavar="FOLDER",
                        default=CACHE, help="where kernel packages are kept, for all clones")
    parser.add_argument("--parts", nargs="+", choices=check.PARTS, default=list(check.PARTS),
                        help="the tests to run")
    parser.add_argument("--packets", type=int, default=2000, help="packets for each NIC")
    parser.add_argument("--limit", type=float, default=600, metavar="SECONDS",
                        help="the longest the guest may say nothing")
    return parser.parse_args()


def main():
    arguments = parse()
    if arguments.told:
        sections = guest.parse(arguments.told.read_text(errors="replace"))
        return judge(sections, arguments)
    if not arguments.picnic.exists():
        print(f"failed: {arguments.picnic} is not there: cargo build")
        return 1
    reason = guest.why_not()
    if reason:
        print(reason)
        return 77
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="picnic-guest-") as name:
        work = pathlib.Path(name)
        try:
            sections = guest.boot(arguments.picnic, work, arguments.kernels, arguments.limit,
                                  {"PACKETS": arguments.packets,
                                   "FLOWS": f'"{check.flows_for_guest()}"',
                                   "PARTS": f'"{" ".join(arguments.parts)}"'})
        except guest.Unavailable as error:
            print(error)
            return 77
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            print(f"failed: {error}")
            return 1
        finally:
            if arguments.keep:
                arguments.keep.mkdir(parents=True, exist_ok=True)
                for log in work.glob("*.log"):
                    shutil.copy(log, arguments.keep)
    print(f"guest           done after {time.monotonic() - started:.0f} s", flush=True)
    return judge(sections, arguments)


def judge(sections, arguments):
    try:
        for line in check.check(sections, arguments.parts, arguments.packets):
            print(line, flush=True)
    except Wrong as error:
        print(f"failed: {error}")
        return 1
    except KeyError as error:
        print(f"failed: the guest has not told {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
