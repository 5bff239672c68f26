//! Whether the driver of an interface accepts an XDP program, as far as known without trying.
//!
//! ```no_run
//! if let Some(why) = picnic_machine::xdp::refusal("eth0", None) {
//!     println!("eth0 takes no XDP program: {why}");
//! }
//! ```
//!
//! Source: Documentation/netlink/specs/netdev.yaml, `xdp-features`; drivers/net/veth.c.

use crate::command;
use crate::netdev;
use crate::undo::within;
use crate::veth::{VethPeer, far, is_one};

/// The longest packet that any driver has room for. A program needs room before it and after
/// it, all in one page of x86-64: the kernel's headroom, an Ethernet header, and at least the
/// kernel's record of a packet's pages.
const LONGEST: usize = 4096 - (256 + 14 + 320);

/// Why the driver of an interface of a namespace (a name of `ip netns`; default: the current one)
/// would refuse a program that needs each packet in one piece. `None` if no reason is known:
/// drivers may have limits of their own.
pub fn refusal(interface: &str, namespace: Option<&str>) -> Option<String> {
    if netdev::has_xdp(interface, namespace) == Some(false) {
        return Some(match is_one(interface, namespace) {
            true => "its other end has more transmit queues than it has receive queues".into(),
            false => without_xdp(interface, namespace),
        });
    }
    let VethPeer::End(end) = far(interface, namespace) else { return None };
    (end.mtu > LONGEST).then(|| {
        let words = within(end.namespace.as_deref(), &["ip", "link", "set", &end.interface]);
        format!(
            "the MTU of its other end {} is {}, more than {LONGEST} ({} mtu {LONGEST})",
            end.interface,
            end.mtu,
            words.join(" ")
        )
    })
}

/// The driver of an interface of a namespace; none if it cannot be queried.
pub fn driver(interface: &str, namespace: Option<&str>) -> Option<String> {
    let words = within(namespace, &["ethtool", "-i", interface]);
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let told = command::run(&words).ok()?;
    let driver = told.lines().find_map(|line| line.strip_prefix("driver:"));
    driver.map(|driver| driver.trim().to_owned())
}

fn without_xdp(interface: &str, namespace: Option<&str>) -> String {
    match driver(interface, namespace) {
        Some(driver) => format!("it ({driver}) does not know XDP"),
        None => "it does not know XDP".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testbed::Testbed;
    use picnic_testing::skip;

    #[test]
    fn driver_refusals_are_known_beforehand() {
        let test = "driver_refusals_are_known_beforehand";
        let Ok(bed) = Testbed::build("xdp-test") else { return skip(test, "it needs root") };
        for place in ["one", "other"] {
            bed.add_namespace(place).unwrap();
        }
        let [one, other] = ["one", "other"].map(|place| bed.netns(place));
        let refusal = |interface| refusal(interface, Some(&one));
        bed.add_veth(("one", "v0"), ("other", "v1"), "").unwrap();
        assert_eq!(refusal("v0"), None);
        bed.ip("other", "link set v1 mtu 9000").unwrap();
        let found = refusal("v0").unwrap();
        let mend = format!("ip netns exec {other} ip link set v1 mtu {LONGEST}");
        assert_eq!(
            found,
            format!("the MTU of its other end v1 is 9000, more than {LONGEST} ({mend})")
        );
        bed.within("other", &format!("ip link set v1 mtu {LONGEST}")).unwrap();
        assert_eq!(refusal("v0"), None);
        // Linux reports XDP features of drivers since 6.3.
        if netdev::has_xdp("v0", Some(&one)).is_none() {
            return skip(test, "it needs Linux 6.3");
        }
        assert_eq!(refusal("lo").unwrap(), "it does not know XDP");
        bed.ip("one", "link add v2 numrxqueues 1 type veth peer name v3 numtxqueues 2").unwrap();
        assert_eq!(refusal("v2"), None);
        bed.within("one", "ethtool -L v3 tx 2").unwrap();
        let queues = "its other end has more transmit queues than it has receive queues";
        assert_eq!(refusal("v2").unwrap(), queues);
    }
}
