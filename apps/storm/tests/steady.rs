//! In steady state a member allocates nothing, neither by itself nor with its card: a counting
//! allocator watches each test's thread.

use picnic_control::Launch;
use picnic_control::launch::Built;
use picnic_core::doorbell::{Doorbell, NoDoorbell};
use picnic_core::time::Time;
use picnic_engine::assemble::{Assembled, assemble};
use picnic_engine::poll::Card;
use picnic_engine::target::TargetQueue;
use picnic_os::channel::{Channels, HostEnd};
use picnic_storm::card::records::Record;
use picnic_storm::card::task::CHANNEL;
use picnic_storm::{Member, Settings, To, cards};
use std::sync::Arc;

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

const MEMBERS: usize = 3;

/// A member on a card, joined to the others by cables.
fn card(me: usize) -> (Card, Channels, Vec<TargetQueue>) {
    let peers: Vec<usize> = (0..MEMBERS).filter(|peer| *peer != me).collect();
    let wire = |peer: usize| peers.iter().position(|other| *other == peer).unwrap_or(0);
    let mut text = format!(
        "[host]\nqueues = 1\n[pool]\nbuffers = 1024\n[os]\nadmission = \"override\"\n\
         arena_bytes = 8388608\n[[task]]\ntask = \"storm\"\nmembers = [\"0\", \"1\", \"2\"]\n\
         me = \"{me}\"\nwires = {:?}\n",
        (0..MEMBERS).map(wire).collect::<Vec<_>>()
    );
    for peer in &peers {
        let (low, high) = (me.min(*peer), me.max(*peer));
        text += &format!("[[wire]]\nport = \"cable\"\ncable = \"steady-{low}-{high}\"\n");
    }
    let file = picnic_host::sections().parse(&text, None).unwrap();
    let Built { parts, os, .. } = Launch::new(&file, cards::registries()).build().unwrap();
    let channels = os.unwrap().factory.channels().clone();
    let doorbells: [Arc<dyn Doorbell>; 1] = [Arc::new(NoDoorbell)];
    let Assembled { card, queues, .. } =
        assemble(&file, parts, &doorbells, Arc::new(NoDoorbell)).unwrap();
    (card, channels, queues)
}

#[test]
fn cards_order_without_an_allocation() {
    let mut group: Vec<_> = (0..MEMBERS).map(card).collect();
    let mut ends: Vec<Option<HostEnd>> = (0..MEMBERS).map(|_| None).collect();
    let (mut now, mut message, mut delivered, mut allocated) = (Time::ZERO, [0; 2048], 0, 0);
    for turn in 0..30_000 {
        for ((card, channels, _), end) in group.iter_mut().zip(&mut ends) {
            now = now + 1_000;
            let used = allocation_counter::measure(|| {
                card.poll(now);
            });
            // The first messages find filters, channel and rings as they are made.
            allocated += if turn < 5_000 { 0 } else { used.count_total };
            let Some(end) = end else {
                *end = channels.open_here(CHANNEL, Arc::new(NoDoorbell)).ok();
                continue;
            };
            while let Some(bytes) = end.receive(&mut message) {
                let record = Record::read(&message[..bytes]);
                delivered += u32::from(matches!(record, Some(Record::Delivered(_))));
            }
            if turn % 4 == 0 {
                let _ = end.send(&[7; 64]);
            }
        }
    }
    assert!(delivered > 10_000, "{delivered} messages");
    assert_eq!(allocated, 0, "allocations for {delivered} messages");
}
