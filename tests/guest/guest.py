"""A virtual machine of eight cores: its kernel, its files, its start, its report.

    sections = boot(picnic, folder, cache, limit_s=200, packets=2000)

The kernel is Debian's packaged cloud kernel, unpacked but not installed. The machine is emulated in
software, so it needs no privileges and no /dev/kvm. It has two packages of two cores with two SMT
threads, which share an L2; one L3 per package; ten virtio NICs in five pairs, each pair on its own
hub; and a pair of another kind, whose driver is loaded late.
"""

import gzip
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
CARDS = HERE.parents[1] / "examples/cards"
TOOLS = {"qemu-system-x86_64": "qemu-system-x86", "cpio": "cpio", "dpkg-deb": "dpkg",
         "ip": "iproute2", "ethtool": "ethtool"}
BUSYBOX = "/bin/busybox"
META_PACKAGE = "linux-image-cloud-amd64"
# Required kernel modules, with their dependencies.
MODULES = ("virtio_pci", "virtio_console", "virtio_net")
# Loaded by the guest when it sends, bonds interfaces, makes tunnels, and needs the last pair of NICs.
LATER = ("pktgen", "tun", "bonding", "geneve", "ip_gre", "ipip", "vmxnet3")
NICS = 5 * ("virtio-net-pci",) + ("vmxnet3",)
# What this machine's kernel tells the time by.
CLOCK = pathlib.Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")


# What the guest's kernel says when a timer of an emulated core has gone off without a word. That has
# been seen while it starts, and then it does not come to run anything.
LOST_TIMER = "timer wakeup didn't happen"


class Unavailable(Exception):
    """A requirement is missing."""


def why_not():
    """Why there can be no guest here; None if there can."""
    if os.uname().machine != "x86_64":
        return f"the guest is an x86_64 machine, this one is {os.uname().machine}"
    absent = [package for tool, package in TOOLS.items() if shutil.which(tool) is None]
    if not os.path.exists(BUSYBOX) or not is_static(BUSYBOX):
        absent.append("busybox-static")
    return f"{', '.join(absent)} not installed" if absent else None


def is_static(path):
    return not libraries(path)


def libraries(path):
    """The shared libraries of a program, its loader among them."""
    told = subprocess.run(["ldd", path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          text=True, check=False)
    return re.findall(r"(/\S+) \(0x", told.stdout)


def kernel(cache):
    """The folder of an unpacked kernel package, fetched if it is not there yet."""
    for folder in sorted(cache.glob("linux-*")):
        if list(folder.glob("boot/vmlinuz-*")):
            return folder
    if shutil.which("apt-get") is None:
        raise Unavailable("no kernel package: there is no apt-get")
    package = package_name()
    if package is None and os.geteuid() == 0:
        subprocess.run(["apt-get", "update", "-q"], stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, check=False)
        package = package_name()
    if package is None:
        raise Unavailable(f"no kernel package: apt-cache knows no {META_PACKAGE}")
    cache.mkdir(parents=True, exist_ok=True)
    # In a separate folder until it is complete: another clone may fetch it, too.
    with tempfile.TemporaryDirectory(prefix="partial-", dir=cache) as partial:
        partial = pathlib.Path(partial)
        # apt-get fetches as a separate user.
        partial.chmod(0o755)
        fetched = subprocess.run(["apt-get", "download", "-q", package], cwd=partial, text=True,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        archives = sorted(partial.glob(f"{package}_*.deb"))
        if fetched.returncode or not archives:
            last = (fetched.stdout.strip() or "no output").splitlines()[-1]
            raise Unavailable(f"no kernel package: apt-get download {package}: {last}")
        subprocess.run(["dpkg-deb", "-x", archives[-1], partial / "whole"], check=True)
        folder = cache / package.replace("linux-image", "linux")
        try:
            (partial / "whole").rename(folder)
        except OSError:
            if not folder.exists():
                raise
    return folder


def package_name():
    """The kernel package that the meta package means today; None if its list is not there."""
    told = subprocess.run(["apt-cache", "depends", META_PACKAGE], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True, check=False)
    found = re.search(r"Depends: (linux-image-\S+)", told.stdout)
    return found and found[1]


def modules(folder, names):
    """The files of modules and their dependencies, in loading order."""
    files = {module_name(path): path for path in folder.glob("lib/modules/**/*.ko*")}
    ordered = []

    def add(name):
        path = files.get(name)
        # Without a file it is part of the kernel.
        if path is None or path in ordered:
            return
        needed = re.search(rb"\0?depends=([^\0]*)\0", read_module(path))
        for other in filter(None, needed[1].decode().split(",") if needed else []):
            add(other.replace("-", "_"))
        ordered.append(path)

    for name in names:
        if name not in files:
            raise Unavailable(f"the kernel package has no module {name}")
        add(name)
    return ordered


def module_name(path):
    return path.name.partition(".")[0].replace("-", "_")


def read_module(path):
    data = path.read_bytes()
    if path.suffix == ".xz":
        import lzma
        return lzma.decompress(data)
    return gzip.decompress(data) if path.suffix == ".gz" else data


def make_initramfs(picnic, kernel_folder, work, environment):
    root = work / "root"
    for name in ("bin", "dev", "modules", "lib64"):
        (root / name).mkdir(parents=True)
    shutil.copy(BUSYBOX, root / "bin/busybox")
    (root / "bin/sh").symlink_to("busybox")
    program = root / "bin/picnic"
    shutil.copy(picnic, program)
    if shutil.which("strip"):
        subprocess.run(["strip", program], check=False)
    # Busybox has a program of this name, which makes no tunnels of every kind.
    iproute, ethtool = shutil.which("ip"), shutil.which("ethtool")
    (root / "iproute2").mkdir()
    shutil.copy(iproute, root / "iproute2/ip")
    shutil.copy(ethtool, root / "bin/ethtool")
    for library in {*libraries(picnic), *libraries(iproute), *libraries(ethtool)}:
        place = root / library.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, place)

    def put(name, paths):
        """Modules, and a list of them in loading order."""
        for path in paths:
            (root / f"modules/{module_name(path)}.ko").write_bytes(read_module(path))
        (root / f"modules/{name}").write_text(" ".join(map(module_name, paths)))

    put("start", modules(kernel_folder, MODULES))
    for name in LATER:
        put(name, modules(kernel_folder, [name]))
    text = (HERE / "init").read_text()
    settings = "".join(f"{name}={value}\n" for name, value in environment.items())
    first, rest = text.split("\n", 1)
    (root / "init").write_text(f"{first}\n{settings}{rest}")
    (root / "init").chmod(0o755)
    for file in (HERE / "network.sh", HERE / "five.toml", HERE / "kernel.toml", HERE / "hybrid.toml",
                 HERE / "steered.toml", CARDS / "five-wires.toml"):
        shutil.copy(file, root / file.name)
    names = "\n".join(str(path.relative_to(root)) for path in sorted(root.rglob("*")))
    image = work / "initramfs"
    archive = subprocess.run(["cpio", "-o", "-H", "newc", "--quiet", "-R", "0:0"], cwd=root,
                             input=names.encode(), stdout=subprocess.PIPE, check=True)
    # Fast rather than small: it is unpacked once, by an emulated core.
    image.write_bytes(archive.stdout)
    return image


def command(kernel_folder, image, work):
    (vmlinuz,) = kernel_folder.glob("boot/vmlinuz-*")
    # Without random addresses, what QEMU translated of a program serves for its next start, too.
    # Emulated cores read this machine's counters, each the counter of its current core. If these
    # may differ, the guest asks a device for the time and leaves emulation for it: two thirds more
    # work.
    do_agree = CLOCK.exists() and CLOCK.read_text().strip() == "tsc"
    counters = "reliable" if do_agree else "unstable"
    # The kernel does not check its timer: the emulator may have no time for it at that moment.
    line = ("console=ttyS0 quiet loglevel=4 ipv6.disable=1 panic=-1 mitigations=off no_timer_check "
            f"random.trust_cpu=on tsc={counters} nowatchdog norandmaps")
    options = ["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-M", "pc", "-cpu", "Nehalem",
               "-smp", "8,sockets=2,cores=2,threads=2", "-m", "1024", "-display", "none",
               "-no-reboot", "-nodefaults", "-kernel", vmlinuz, "-initrd", image, "-append", line,
               "-serial", f"file:{work / 'console.log'}", "-device", "virtio-serial-pci",
               "-chardev", f"file,id=told,path={work / 'told.log'}",
               "-device", "virtserialport,chardev=told,name=told"]
    for number, kind in enumerate(NICS):
        for side, letter in enumerate("ab"):
            name = f"{letter}{number}"
            mac = f"52:54:00:00:00:{side}{'abcdef'[number]}"
            options += ["-netdev", f"hubport,id={name},hubid={number}",
                        "-device", f"{kind},netdev={name},mac={mac}"]
    return [str(option) for option in options]


def boot(picnic, work, cache, limit_s, environment):
    """Runs the guest to its end; what it told, by name: exit code and text.

    A busy machine may take its time; a guest that says nothing for `limit_s` hangs. One that loses a
    timer before it has told anything is started again, twice at most.
    """
    folder = kernel(cache)
    image = make_initramfs(picnic, folder, work, environment)
    log, console = work / "told.log", work / "console.log"
    for starts_left in (2, 1, 0):
        # Both exist, regardless of the emulator's result.
        log.write_text("")
        console.write_text("")
        with (work / "qemu.log").open("w+", errors="replace") as said, \
                subprocess.Popen(command(folder, image, work), stdout=said, stderr=said) as emulator:
            try:
                reason = wait_while_it_tells(emulator, log, console if starts_left else None, limit_s)
            finally:
                emulator.kill()
            if reason is None:
                said.seek(0)
                reason = f"qemu ended with exit code {emulator.returncode}: {said.read().strip()[-300:]}"
        if reason != LOST_TIMER:
            break
        print("guest           started again: an emulated core had lost its timer", flush=True)
    told = log.read_text(errors="replace")
    sections = parse(told)
    if "end" not in sections:
        last_lines = console.read_text(errors="replace").strip()[-1500:]
        told = "\n".join(f"{uptime:>8} {name}" for name, uptime in list(uptimes(told).items())[-20:])
        raise RuntimeError(f"the guest did not come to its end ({reason}); the last it told, by "
                           f"seconds since its start:\n{told or 'nothing'}\n"
                           f"its console ends with:\n{last_lines}")
    return sections


def wait_while_it_tells(emulator, log, console, limit_s):
    """Waits for the emulator to end; why it was not waited for, None if it has ended.

    It is not if the log has not grown for so long, or if a timer is lost (of the console) before
    there is anything in the log.
    """
    size, since = 0, time.monotonic()
    while emulator.poll() is None:
        time.sleep(0.2)
        last, size = size, log.stat().st_size
        if size != last:
            since = time.monotonic()
        elif time.monotonic() - since > limit_s:
            return f"it told nothing for {limit_s} s"
        elif console and not size and LOST_TIMER in console.read_text(errors="replace"):
            return LOST_TIMER
    return None


def parse(text):
    return {name: (int(code), body) for name, _, code, body in parts(text)}


def uptimes(text):
    return {name: uptime for name, uptime, _, _ in parts(text)}


def parts(text):
    for part in re.split(r"^@@ ", text, flags=re.M)[1:]:
        header, _, body = part.partition("\n")
        yield *header.rsplit(" ", 2), body
