//! Long packets: the payload stays in place.

use super::*;
use picnic_core::packet::pool::{Pool, PoolConfig};
use picnic_engine::trial::frames::{ethernet, ipv4, udp, udp_to};

/// The payload of a long packet, whose first buffer has all headers, stays in place.
#[test]
fn payload_of_long_packets_is_not_moved() {
    let inner = ethernet(&[], 0x0800, &ipv4(17, 0, &[], &udp(&[7; 8000])));
    let vxlan = [&[0x08, 0, 0, 0, 0, 0, 42, 0], &inner[..]].concat();
    let frame = ethernet(&[], 0x0800, &ipv4(17, 0, &[], &udp_to(4789, &vxlan)));
    let (mut pool, _) = Pool::new(&PoolConfig::default(), 0).unwrap();
    let mut packet = pool.packet(&frame).unwrap();
    let before = (packet.headroom(), packet.data().len());
    let config = Config { mode: Mode::Expose, ..Config::default() };
    let mut tunnel = Tunnel::new(&config).unwrap();
    tunnel.expose(&mut packet);
    assert_eq!((tunnel.counts.exposed, packet.inner_l3()), (1, Some(64)));
    assert_eq!((packet.headroom(), packet.data().len()), before);
    pool.free(packet);
}
