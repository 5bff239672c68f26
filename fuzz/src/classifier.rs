//! The filters' classifier with any rules, changes and packets, compared with the list.

use arbitrary::{Result, Unstructured};
use picnic_filter::classifier::{Address, BURST, Classifier, Key, NONE};
use picnic_filter::matching::Tuple;
use picnic_filter::{FiveTuple, Hidden, PortRange, Prefix, Protocol};
use std::net::IpAddr;

/// An address with few variable bits, so that prefixes match packets.
fn address(input: &mut Unstructured<'_>, v6: bool) -> Result<IpAddr> {
    let bits: u32 =
        if input.arbitrary()? { input.arbitrary()? } else { input.int_in_range(0..=7)? };
    if !v6 {
        return Ok(IpAddr::from(bits.to_be_bytes()));
    }
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&bits.to_be_bytes());
    bytes[12..].copy_from_slice(&bits.to_be_bytes());
    Ok(IpAddr::from(bytes))
}

fn ports(input: &mut Unstructured<'_>) -> Result<PortRange> {
    let (a, b): (u16, u16) = match input.int_in_range(0..=3)? {
        0 => return Ok(PortRange::ANY),
        1 => (input.int_in_range(0..=7)?, input.int_in_range(0..=7)?),
        2 => {
            let port = input.arbitrary()?;
            (port, port)
        }
        _ => (input.arbitrary()?, input.arbitrary()?),
    };
    Ok(PortRange::new(a.min(b), a.max(b)).unwrap_or_default())
}

fn rule(input: &mut Unstructured<'_>) -> Result<FiveTuple> {
    let v6 = input.ratio(1, 3)?;
    let prefix = |input: &mut Unstructured<'_>| {
        if input.ratio(1, 4)? {
            return Ok(None);
        }
        let length = input.int_in_range(0..=if v6 { 128 } else { 32 })?;
        Ok(Prefix::new(address(input, v6)?, length))
    };
    let (source, destination) = (prefix(input)?, prefix(input)?);
    let protocol = if input.arbitrary()? { Some(Protocol(input.arbitrary()?)) } else { None };
    let (source_ports, destination_ports) = (ports(input)?, ports(input)?);
    Ok(FiveTuple { protocol, source, destination, source_ports, destination_ports })
}

fn packet(input: &mut Unstructured<'_>) -> Result<Tuple> {
    let v6 = input.ratio(1, 3)?;
    let (source, destination) = (address(input, v6)?, address(input, v6)?);
    let ports =
        if input.ratio(3, 4)? { Some((input.arbitrary()?, input.arbitrary()?)) } else { None };
    let protocol = Protocol(input.arbitrary()?);
    Ok(Tuple {
        source,
        destination,
        protocol,
        ports,
        hidden: Hidden::Nothing,
        authenticated: false,
    })
}

fn agree<A: Address>(classifier: &Classifier<A>, rules: &[FiveTuple], packets: &[Tuple]) {
    for packets in packets.chunks(BURST) {
        let of_family = packets.iter().filter_map(|packet| {
            let Tuple { source, destination, protocol, ports, .. } = *packet;
            Some((Key::<A>::new(source, destination, protocol.0, ports)?, packet))
        });
        let (keys, packets): (Vec<_>, Vec<_>) = of_family.unzip();
        let mut places = [0; BURST];
        classifier.classify(&keys, &mut places);
        for ((key, packet), &place) in keys.iter().zip(packets).zip(&places) {
            let from = rules.len() / 2;
            let list = |from: usize| {
                let found = rules.iter().skip(from).position(|rule| rule.matches(packet));
                found.map_or(NONE, |place| (place + from) as u16)
            };
            assert_eq!(place, list(0), "{packet:?} in {rules:?}");
            assert_eq!(classifier.find_from(key, from as u16), list(from), "{packet:?}");
        }
    }
}

fn build<A: Address>(rules: &[FiveTuple]) -> Classifier<A> {
    Classifier::build((0_u16..).zip(rules))
}

/// Rules, compiled; then changes in place; after each, packets.
pub fn run(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let _ = judge(&mut input);
}

fn judge(input: &mut Unstructured<'_>) -> Result<()> {
    let count = input.int_in_range(0..=48)?;
    let mut rules = (0..count).map(|_| rule(input)).collect::<Result<Vec<_>>>()?;
    let (mut v4, mut v6) = (build::<u64>(&rules), build::<[u64; 4]>(&rules));
    while !input.is_empty() {
        let count = input.int_in_range(1..=8)?;
        let packets = (0..count).map(|_| packet(input)).collect::<Result<Vec<_>>>()?;
        agree(&v4, &rules, &packets);
        agree(&v6, &rules, &packets);
        if input.arbitrary()? && !rules.is_empty() {
            let place = input.choose_index(rules.len())?;
            let gone = rules.remove(place);
            v4.remove(place as u16, &gone);
            v6.remove(place as u16, &gone);
            v4.close_gap(place as u16);
            v6.close_gap(place as u16);
        } else {
            let place = input.int_in_range(0..=rules.len())?;
            let new = rule(input)?;
            rules.insert(place, new);
            v4.make_room(place as u16);
            v6.make_room(place as u16);
            v4.insert(place as u16, &new);
            v6.insert(place as u16, &new);
        }
    }
    Ok(())
}

/// Initial inputs.
pub fn seeds() -> Vec<Vec<u8>> {
    let pattern = |seed: u32| {
        (0..600_u32)
            .map(|n| (n.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as u8)
            .collect()
    };
    vec![Vec::new(), vec![0; 64], vec![0xff; 64], pattern(1), pattern(77)]
}

#[cfg(test)]
mod tests {
    #[test]
    fn seeds_pass() {
        super::seeds().iter().for_each(|seed| super::run(seed));
    }
}
