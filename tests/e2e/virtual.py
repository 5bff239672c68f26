"""A small guest under QEMU's emulation, which runs commands for its test.

    image, kernel = virtual.build(folder, cache)
    with Guest(folder, kernel, image, socket, queues=2, mac="02:00:00:00:00:01") as guest:
        guest.run("ip address add 10.0.0.1/24 dev eth0")

The kernel is Debian's cloud kernel, as of tests/guest. The files are busybox, iperf3, ethtool, ip and
the virtio drivers. The guest reads commands from a port of virtio-serial and answers with their
output and exit code.

Guarantees: a command that fails raises `Wrong` with its output; QEMU ends with the guest.
"""

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

from check import Wrong

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "guest"))
import guest as packaged  # noqa: E402

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "picnic/guest"
MODULES = ("virtio_pci", "virtio_console", "virtio_net")
TOOLS = ("ip", "ethtool", "iperf3")
MEMORY_MIB = 192
# What a start of the guest, and any one command in it, may take on a busy machine, in seconds: it is
# emulated, beside others.
PATIENCE = 600
MARK = b"\n@@ "
INIT = """#!/bin/busybox sh
/bin/busybox --install /bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
mount -t tmpfs none /tmp
echo 0 > /proc/sys/kernel/printk
export PATH=/tools:/bin
for name in $(cat /modules/start); do insmod "/modules/$name.ko"; done
ip link set lo up
while ! ls /dev/vport*; do sleep 0.1; done
exec 0<> $(ls /dev/vport*) 1>&0 2>&1
while :; do
    # Nobody is at the other end yet, or any more.
    read -r line || { sleep 0.1; continue; }
    sh -c "$line" < /dev/null
    printf '\\n@@ %d\\n' $?
done
"""


def why_not():
    """Why there can be no guest here; None if there can."""
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"{', '.join(absent)} not installed" if absent else packaged.why_not()


def build(work, cache=CACHE):
    """The guest's initramfs and kernel."""
    folder = packaged.kernel(cache)
    root = work / "root"
    for name in ("bin", "dev", "proc", "sys", "tmp", "modules", "tools"):
        (root / name).mkdir(parents=True)
    shutil.copy(packaged.BUSYBOX, root / "bin/busybox")
    programs = [shutil.which(tool) for tool in TOOLS]
    for program in programs:
        shutil.copy(program, root / "tools")
        for library in packaged.libraries(program):
            place = root / library.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, place)
    modules = packaged.modules(folder, MODULES)
    for path in modules:
        name = f"modules/{packaged.module_name(path)}.ko"
        (root / name).write_bytes(packaged.read_module(path))
    (root / "modules/start").write_text(" ".join(map(packaged.module_name, modules)))
    (root / "init").write_text(INIT)
    (root / "init").chmod(0o755)
    names = "\n".join(str(path.relative_to(root)) for path in sorted(root.rglob("*")))
    archive = subprocess.run(["cpio", "-o", "-H", "newc", "--quiet", "-R", "0:0"], cwd=root,
                             input=names.encode(), stdout=subprocess.PIPE, check=True)
    image = work / "initramfs"
    image.write_bytes(archive.stdout)
    (vmlinuz,) = folder.glob("boot/vmlinuz-*")
    return image, vmlinuz


class Guest:
    """A running guest, whose NIC `eth0` is the card at `socket`."""

    def __init__(self, work, name, kernel, image, device, queues, mac, mtu, extra=(), nic=""):
        self.name, self.console = name, work / f"{name}-console.log"
        self.serial, self.monitor = work / f"{name}.serial", work / f"{name}.monitor"
        for path in (self.serial, self.monitor):
            path.unlink(missing_ok=True)
        # Not vectors: QEMU 7.2 crashes with them in software emulation (decision 079).
        command = [
            "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "Nehalem",
            "-smp", str(queues), "-m", str(MEMORY_MIB), "-nodefaults", "-display", "none",
            "-serial", f"file:{self.console}",
            "-chardev", f"socket,id=commands,path={self.serial},server=on,wait=off",
            "-device", "virtio-serial-pci", "-device", "virtserialport,chardev=commands",
            "-monitor", f"unix:{self.monitor},server=on,wait=off",
            "-object", f"memory-backend-memfd,id=memory,size={MEMORY_MIB}M,share=on",
            "-machine", "pc,memory-backend=memory", "-kernel", kernel, "-initrd", image,
            "-append", "console=ttyS0 quiet loglevel=3 panic=-1 mitigations=off tsc=unstable "
                       "no_timer_check random.trust_cpu=on nowatchdog",
            "-chardev", f"socket,id=card,{device}",
            "-netdev", f"vhost-user,id=n0,chardev=card,queues={queues}",
            "-device", f"virtio-net-pci,netdev=n0,mac={mac},mq=on,vectors=0,host_mtu={mtu}{nic}", *extra]
        self.said = open(work / f"{name}-qemu.log", "w+", encoding="utf-8", errors="replace")
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.said,
                                        stderr=self.said)
        self.line = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        if self.line:
            self.line.close()
        self.said.close()

    def state(self):
        self.said.seek(0)
        console = self.console.read_text(errors="replace")[-1500:] if self.console.exists() else ""
        return (f"{self.name}: qemu exit code {self.process.poll()}: {self.said.read()[-1000:]}\n"
                f"console: {console}")

    def connect(self):
        """Waits until the guest takes commands."""
        self.line = reach(self.serial, self)
        self.line.settimeout(PATIENCE)
        self.run("true")
        return self

    def answer(self):
        told = b""
        while not (MARK in told and told.endswith(b"\n")):
            try:
                part = self.line.recv(65_536)
            except TimeoutError as error:
                raise Wrong(f"no answer in {PATIENCE} s\n{self.state()}") from error
            if not part:
                raise Wrong(f"the guest ended\n{self.state()}")
            told += part
        text, _, code = told.rpartition(MARK)
        return text.decode(errors="replace"), int(code)

    def ask(self, command):
        """Output and exit code of a command."""
        self.line.sendall(command.encode() + b"\n")
        return self.answer()

    def run(self, command):
        text, code = self.ask(command)
        if code:
            raise Wrong(f"{self.name}: {command}: exit code {code}: {text[-1500:]}")
        return text

    def order(self, command):
        """A command of QEMU's monitor, and its answer."""
        with reach(self.monitor, self) as monitor:
            monitor.settimeout(PATIENCE)
            read_prompt(monitor)
            monitor.sendall(command.encode() + b"\n")
            return read_prompt(monitor)


def read_prompt(monitor):
    told = b""
    while not told.endswith(b"(qemu) "):
        part = monitor.recv(65_536)
        if not part:
            break
        told += part
    return told.decode(errors="replace")


def reach(path, guest):
    end = time.monotonic() + PATIENCE
    while True:
        line = socket.socket(socket.AF_UNIX)
        try:
            line.connect(str(path))
            return line
        except OSError as error:
            line.close()
            if guest.process.poll() is not None or time.monotonic() > end:
                raise Wrong(guest.state()) from error
            time.sleep(0.05)
