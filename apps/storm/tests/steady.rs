//! In steady state a member allocates nothing: a counting allocator watches.
//!
//! One test only, so that no other thread of the process allocates meanwhile.

use picnic_core::time::Time;
use picnic_storm::{Member, Settings, To};

/// Each member submits, then all packets arrive; every twentieth packet to member 0 is lost.
fn round(group: &mut [Member], packet: &mut [u8], now: Time, lost: &mut u32) {
    for member in group.iter_mut() {
        let _ = member.submit(&[7; 64]);
        let _ = member.submit(&[8; 700]);
    }
    for _ in 0..6 {
        for from in 0..group.len() {
            while let Some((to, length)) = group[from].transmit(now, packet) {
                for receiver in (0..group.len()).filter(|receiver| *receiver != from) {
                    if to != To::All && to != To::One(receiver as u8) {
                        continue;
                    }
                    *lost += u32::from(receiver == 0);
                    if receiver != 0 || !lost.is_multiple_of(20) {
                        group[receiver].receive(now, &packet[..length]).unwrap();
                    }
                }
            }
        }
        group.iter_mut().for_each(|member| while member.deliver().is_some() {});
    }
}

#[test]
fn messages_are_ordered_without_an_allocation() {
    let members: Vec<String> = (0..5).map(|name| name.to_string()).collect();
    let member = |me| Member::new(Settings { me, members: members.clone(), ..Settings::default() });
    let mut group: Vec<Member> = (0..5).map(|me| member(me).unwrap()).collect();
    let (mut packet, mut now, mut lost) = ([0; 1472], Time::ZERO, 0);
    let rounds = || {
        for _ in 0..1_000 {
            now = now + 100_000;
            round(&mut group, &mut packet, now, &mut lost);
        }
    };
    assert_eq!(allocation_counter::measure(rounds).count_total, 0, "in a thousand rounds");
    let counts = group[0].counts();
    assert!(counts.delivered > 9_000 && counts.requests_sent > 100, "{counts:?}");
}
