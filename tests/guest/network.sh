# The guest's tests with networks of their own; `init` reads this file.

# ---------------------------------------------------------------- Linux's bonding at the other end

# A network of its own, held by the process $apart.
network_apart() {
    unshare -n sleep 10000 &
    apart=$!
    wait_for sh -c "[ /proc/$apart/ns/net -ef /proc/1/ns/net ] && exit 1; true"
}

# A network of its own for a card's host, and a file of so many KiB to send there.
host_apart() { # KIB
    load tun
    network_apart
    far=$apart
    within="nsenter --net=/proc/$far/ns/net"
    dd if=/dev/urandom of=/tmp/data bs=1k count="$1" 2> /dev/null
    make_quiet
}

# Echo replies that have come so far.
replies() {
    awk '/^Icmp: [0-9]/ { print $11 }' /proc/net/snmp
}

# Twenty pings, and how many of them were answered in the end: `ping` does not wait for a last answer
# that is much later than those before it.
pings() { # ADDRESS
    before=$(replies)
    ping -c 20 -i 0.05 -W 5 "$1" > /dev/null
    wait_for sh -c "[ \$(awk '/^Icmp: [0-9]/ { print \$11 }' /proc/net/snmp) -ge $((before + 20)) ]"
    answered=$(($(replies) - before))
    echo "20 packets transmitted, $((answered > 20 ? 20 : answered)) packets received"
}

# What never says anything and never ends, to read from.
make_quiet() {
    [ -e /tmp/quiet ] || {
        mkfifo /tmp/quiet
        sleep 10000 > /tmp/quiet &
    }
}

# A file to a host behind the card and back, by one connection each. Whoever receives keeps quiet:
# this `nc` ends at once when the other has nothing to say. Of several clients at a time, each has a number,
# and a command that its programs are started by.
there_and_back() { # ADDRESS [NUMBER COMMAND...]
    address=$1 number=${2:-0}
    shift $(($# < 2 ? 1 : 2))
    there=500$number back=510$number
    $within timeout 500 nc -l -p $there < /tmp/quiet > /tmp/there.$number &
    receiver=$!
    wait_for sh -c "$within netstat -ltn | grep :$there"
    "$@" timeout 500 nc "$address" $there < /tmp/data
    wait $receiver
    $within timeout 500 nc -l -p $back < /tmp/data &
    wait_for sh -c "$within netstat -ltn | grep :$back"
    "$@" timeout 500 nc "$address" $back < /tmp/quiet > /tmp/back.$number
    sha256sum /tmp/data /tmp/there.$number /tmp/back.$number
}

# Over wires held to a rate that the guest can fill, on a busy machine too: what connections to
# these ports carry in five seconds, as bytes and time before, bytes and time after. Then a file by one
# connection, while each wire is pulled and put back.
held_wires() { # MODE PORT...
    mode=$1
    shift
    sed 's/^interface = .*/&\n[wire.link]\nrate_mbps = 2/' /tmp/bonded.toml > /tmp/held.toml
    picnic run /tmp/held.toml --quiet --json > /tmp/report 2> /tmp/errors &
    card=$!
    wait_for ping -c 1 -W 1 10.50.0.1
    [ $# = 0 ] || speed "$@"
    under_pulls
    finish $card
    tell "bonded/$mode/held-report" cat /tmp/report
}

# Segments that TCP has sent, and those of them that it has sent before.
sent_again() {
    awk '/^Tcp: [0-9]/ { print $12, $13 }' /proc/net/snmp
}

speed() { # PORT...
    programs=
    range=$(cat /proc/sys/net/ipv4/ip_local_port_range)
    # From one port to a row of ports: by their hash, each wire has half of the connections.
    [ $# = 1 ] || echo 40000 40000 > /proc/sys/net/ipv4/ip_local_port_range
    for port in "$@"; do
        $within nc -l -p $port < /tmp/quiet > /tmp/got.$port &
        programs="$programs $!"
    done
    for port in "$@"; do
        wait_for sh -c "$within netstat -ltn | grep :$port"
        nc 10.50.0.1 $port < /dev/zero > /dev/null &
        programs="$programs $!"
    done
    sleep 2
    begin="$(cat /tmp/got.* | wc -c) $(cut -d ' ' -f 1 /proc/uptime) $(sent_again)"
    sleep 5
    end="$(cat /tmp/got.* | wc -c) $(cut -d ' ' -f 1 /proc/uptime) $(sent_again)"
    tell "bonded/$mode/speed" echo "$begin $end"
    echo "$range" > /proc/sys/net/ipv4/ip_local_port_range
    finish $programs
    rm /tmp/got.*
}

under_pulls() {
    head -c 1048576 /tmp/data > /tmp/part
    $within timeout 500 nc -l -p 5001 < /tmp/quiet > /tmp/got &
    receiver=$!
    wait_for sh -c "$within netstat -ltn | grep :5001"
    timeout 500 nc 10.50.0.1 5001 < /tmp/part > /dev/null &
    sender=$!
    # How much has come, by time.
    while [ -d /proc/$receiver ]; do
        echo "$(cut -d ' ' -f 1 /proc/uptime) $(wc -c < /tmp/got)"
        sleep 0.05
    done > /tmp/progress &
    for number in 0 1; do
        sleep 0.5
        ip link set b$number down
        [ $mode = active-backup ] || ip link set a$number down
        sleep 0.8
        ip link set a$number up
        ip link set b$number up
    done
    wait $sender
    tell "bonded/$mode/sender" [ $? = 0 ]
    wait $receiver
    tell "bonded/$mode/whole" cmp /tmp/part /tmp/got
    tell "bonded/$mode/progress" cat /tmp/progress
    rm /tmp/got
}

# A card of two wires, its host in a network of its own, and what Linux makes of the other ends.
bonded() {
    load bonding max_bonds=0
    host_apart 2048
    for mode in balance-rr balance-xor active-backup; do
        case $mode in
        balance-rr) keys="mode = \"round-robin\"" rx="order_usecs = 5000" ;;
        balance-xor) keys="mode = \"flow\"" rx= ;;
        active-backup) keys="mode = \"learn\"" rx= ;;
        esac
        cat > /tmp/bonded.toml << END
[card]
name = "bonded"
idle = "block"
[[wire]]
port = "packet"
interface = "a0"
[[wire]]
port = "packet"
interface = "a1"
[[rx]]
function = "bond"
$keys
$rx
[[tx]]
function = "bond"
$keys
[host]
attachment = "tap"
queues = 1
name = "h0"
namespace = "/proc/$far/ns/net"
addresses = ["10.50.0.1/24"]
END
        echo +bond0 > /sys/class/net/bonding_masters
        echo $mode > /sys/class/net/bond0/bonding/mode
        echo 100 > /sys/class/net/bond0/bonding/miimon
        [ $mode != balance-xor ] || echo layer3+4 > /sys/class/net/bond0/bonding/xmit_hash_policy
        for slave in b0 b1; do
            ip link set $slave down
            echo +$slave > /sys/class/net/bond0/bonding/slaves
        done
        ip address add 10.50.0.2/24 dev bond0
        ip link set bond0 up
        picnic run /tmp/bonded.toml --quiet --json > /tmp/report 2> /tmp/errors &
        card=$!
        wait_for ping -c 1 -W 1 10.50.0.1
        tell "bonded/$mode/state" cat /proc/net/bonding/bond0
        tell "bonded/$mode/ping" pings 10.50.0.1
        tell "bonded/$mode/files" there_and_back 10.50.0.1
        # A wire is pulled under load, and put back.
        ping -c 60 -i 0.05 -W 5 10.50.0.1 > /tmp/pulled &
        pinging=$!
        sleep 1
        ip link set b0 down
        [ $mode = active-backup ] || ip link set a0 down
        sleep 1
        ip link set a0 up
        ip link set b0 up
        wait $pinging
        tell "bonded/$mode/pulled" cat /tmp/pulled
        tell "bonded/$mode/afterwards" pings 10.50.0.1
        finish $card
        tell "bonded/$mode/report" cat /tmp/report
        tell "bonded/$mode/errors" cat /tmp/errors
        case $mode in
        balance-rr) held_wires $mode 5002 ;;
        balance-xor)
            # All that is on its way fits into the queue of one link. What is lost there is sent once
            # more, and its receiver waits for it: that is TCP's, and no wire's.
            $within sysctl -qw net.ipv4.tcp_rmem="4096 32768 32768"
            held_wires $mode $(seq 5002 5017)
            ;;
        active-backup) held_wires $mode ;;
        esac
        echo -bond0 > /sys/class/net/bonding_masters
        ip link set b0 up
        ip link set b1 up
    done
    finish $far
}

# ---------------------------------------------------------------- Linux's tunnels at the other end

# A card that takes tunnels off and puts them on, its host in a network of its own, and Linux's own
# tunnel device behind the other NIC.
tunnels() {
    load geneve
    load ip_gre
    load ipip
    host_apart 512
    mac=02:00:00:00:60:01
    ip=/iproute2/ip
    # What the kernel merges within a tunnel, no packet socket can describe either.
    ethtool -K a0 gro off
    ip address add 10.7.0.2/24 dev b0
    # Behind the card nobody answers for the outer address.
    $ip neighbour replace 10.7.0.1 lladdr $mac dev b0
    for kind in geneve gre gretap ipip; do
        case $kind in
        geneve) kinds=geneve keys="network = 42" linux="id 42 remote 10.7.0.1" ;;
        gre) kinds=gre keys="network = 42" linux="key 42 local 10.7.0.2 remote 10.7.0.1" ;;
        gretap) kinds=gre keys='inner = "ethernet"' linux="local 10.7.0.2 remote 10.7.0.1" ;;
        ipip) kinds=ipip keys= linux="local 10.7.0.2 remote 10.7.0.1" ;;
        esac
        cat > /tmp/tunnels.toml << END
[card]
name = "tunnels"
idle = "block"
[[wire]]
port = "packet"
interface = "a0"
[[rx]]
function = "tunnel"
mode = "decapsulate"
kinds = ["$kinds"]
local = "10.7.0.1"
[[rx]]
function = "rss"
inner = true
[[tx]]
function = "tso"
[[tx]]
function = "tunnel"
mode = "encapsulate"
kinds = ["$kinds"]
local = "10.7.0.1"
remote = "10.7.0.2"
source_mac = "$mac"
destination_mac = "52:54:00:00:00:1a"
$keys
[host]
attachment = "tap"
queues = 2
name = "h0"
mac = "$mac"
mtu = 1400
namespace = "/proc/$far/ns/net"
addresses = ["10.60.0.1/24"]
END
        # What the kernel would cut behind its tunnel no packet socket can describe.
        $ip link add far0 type $kind $linux
        $ip link set far0 up mtu 1400 gso_max_segs 1
        $ip address add 10.60.0.2/24 dev far0
        picnic run /tmp/tunnels.toml --quiet --json > /tmp/report 2> /tmp/errors &
        card=$!
        wait_for sh -c "grep -l borrowed /proc/$card/task/*/comm"
        # A tunnel of IP packets carries no questions for neighbours. Not before the card runs: what
        # is known of them is forgotten when its interface gets its address.
        case $kind in gre | ipip)
            $within $ip neighbour replace 10.60.0.2 lladdr 52:54:00:00:00:1a dev h0
        esac
        wait_for ping -c 1 -W 1 10.60.0.1
        tell "tunnels/$kind/link" $ip -d link show far0
        tell "tunnels/$kind/ping" pings 10.60.0.1
        tell "tunnels/$kind/files" there_and_back 10.60.0.1
        tell "tunnels/$kind/device" $ip -s -s -j link show far0
        finish $card
        tell "tunnels/$kind/report" cat /tmp/report
        tell "tunnels/$kind/errors" cat /tmp/errors
        $ip link delete far0
    done
    ethtool -K a0 gro on
    ip address flush dev b0
    finish $far
}

# ---------------------------------------------------------------- a client at each NIC

# What has passed each client's NIC, and what of it was the client's.
passed_clients() {
    for client in $clients; do
        nsenter --net=/proc/$client/ns/net grep -h '^ *b.:\|^Ip:' /proc/net/dev /proc/net/snmp
    done
}

# Asks for a neighbour once, however late the answer is: these questions are counted.
patient_neighbours() { # COMMAND...
    folder=net.ipv4.neigh.default
    "$@" sysctl -qw $folder.retrans_time_ms=60000 $folder.base_reachable_time_ms=3600000 \
        $folder.delay_first_probe_time=3600
}

# The ready card of five wires, on five NICs of virtio, and a sixth wire on a NIC of another kind. Its
# host and the clients, one at each NIC, have networks of their own, and all clients are in one IP
# network: who is where, the card must learn.
clients() {
    load vmxnet3
    name_nics a5 b5
    host_apart 512
    {
        sed 's/^interface = "w/interface = "a/' /five-wires.toml
        printf '[[wire]]\nport = "packet"\ninterface = "a5"\n'
    } > /tmp/clients.toml
    clients=
    patient_neighbours $within
    for number in 0 1 2 3 4 5; do
        # Frames are to be counted alike at both ends, so none are merged.
        ethtool -K a$number gro off lro off
        ethtool -K b$number tso off gso off gro off
        network_apart
        clients="$clients $apart"
        /iproute2/ip link set b$number netns $apart
        client="nsenter --net=/proc/$apart/ns/net"
        patient_neighbours $client
        $client ip address add 10.0.5.1$number/24 dev b$number
        $client ip link set b$number up promisc on
    done 2> /tmp/errors
    picnic run /tmp/clients.toml --set host.namespace=/proc/$far/ns/net --set card.idle=block \
        --set host.super_frames=false --quiet --json > /tmp/report 2>> /tmp/errors &
    card=$!
    wait_for sh -c "grep -l borrowed /proc/$card/task/*/comm"
    tell clients/before passed_clients
    number=0
    for client in $clients; do
        wait_for nsenter --net=/proc/$client/ns/net ping -c 1 -W 1 10.0.5.1
        there_and_back 10.0.5.1 $number nsenter --net=/proc/$client/ns/net > /tmp/sums.$number &
        sending="$sending $!"
        number=$((number + 1))
    done
    wait $sending
    tell clients/files sh -c 'cat /tmp/sums.*'
    tell clients/after passed_clients
    finish $card
    tell clients/report cat /tmp/report
    tell clients/errors cat /tmp/errors
    for number in 0 1 2 3 4 5; do
        ethtool -K a$number gro on
    done
    finish $clients $far
}
