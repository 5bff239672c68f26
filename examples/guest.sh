#!/bin/sh
# A guest for QEMU: Debian's cloud kernel, busybox and nothing else. Nothing is installed.
#
#   sh examples/guest.sh FOLDER      writes FOLDER/vmlinuz and FOLDER/initramfs
#
# The guest takes the address of its kernel line (address=10.90.0.1/24), answers pings and serves a page
# on port 80. Needs x86_64, apt-get, dpkg-deb, cpio and busybox-static; the kernel package (27 MB) is
# fetched once, into ~/.cache/picnic/guest.
set -eu
fail() { echo "guest.sh: $*" >&2; exit 1; }
[ $# = 1 ] || fail "found $# arguments, allowed: a folder"
[ "$(uname -m)" = x86_64 ] || fail "found $(uname -m), allowed: x86_64"
for tool in apt-get dpkg-deb cpio /bin/busybox; do
    command -v $tool > /dev/null || fail "$tool is not installed: apt-get install cpio busybox-static"
done
ldd /bin/busybox > /dev/null 2>&1 && fail "busybox is not static: apt-get install busybox-static"

cache=${HOME:?}/.cache/picnic/guest
kernel() { ls -d "$cache"/linux-*/boot/vmlinuz-* 2> /dev/null | tail -n 1; }
if [ -z "$(kernel)" ]; then
    package=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/^ *Depends: \(linux-image-\S*\)$/\1/p')
    [ -n "$package" ] || fail "apt-cache knows no linux-image-cloud-amd64: apt-get update"
    mkdir -p "$cache"
    partial=$(mktemp -d "$cache/partial-XXXXXX")
    trap 'rm -rf "$partial"' EXIT
    chmod 755 "$partial"        # apt-get fetches as a separate user
    (cd "$partial" && apt-get download -q "$package" > /dev/null) || fail "$package cannot be fetched"
    dpkg-deb -x "$partial"/*.deb "$partial/whole"
    mv "$partial/whole" "$cache/linux-${package#linux-image-}"
fi
vmlinuz=$(kernel)

mkdir -p "$1"
root=$1/root
rm -rf "$root"
mkdir -p "$root/bin" "$root/dev" "$root/proc" "$root/modules" "$root/www"
cp /bin/busybox "$root/bin"
echo "the guest answers" > "$root/www/index.html"
# The network driver with all that it needs, in this order; a part that is built in has no file.
for name in virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci failover \
    net_failover virtio_net; do
    file=$(find "${vmlinuz%/boot/*}" -name "$name.ko*" | head -n 1)
    case $file in
        *.xz) xz -dc "$file" ;;
        *.gz) gzip -dc "$file" ;;
        *.zst) zstd -qdc "$file" ;;
        ?*) cat "$file" ;;
        *) continue ;;
    esac > "$root/modules/$name.ko"
    echo "$name" >> "$root/modules/order"
done
cat > "$root/init" <<'EOF'
#!/bin/busybox sh
/bin/busybox --install /bin
mount -t proc none /proc
mount -t devtmpfs none /dev
for name in $(cat /modules/order); do insmod "/modules/$name.ko"; done
ip link set lo up
ip address add "$address" dev eth0
ip link set eth0 up
httpd -h /www
echo "the guest is up: $address"
while :; do sleep 3600; done
EOF
chmod 755 "$root/init"
(cd "$root" && find . | cpio -o -H newc --quiet -R 0:0) > "$1/initramfs"
cp "$vmlinuz" "$1/vmlinuz"
rm -rf "$root"
