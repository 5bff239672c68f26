//! The place of the card: register and bus times that a driver of such a device pays.
//!
//! ```toml
//! [device]
//! kind = "discrete"            # or each key on its own
//! register_read_ns = 1200
//! ```
//!
//! A card in software has no registers. With a device that is not ideal, target cores pay as its
//! driver would: a virtual core with time, a real core by waiting. This shows how a program would
//! behave with such a device; the report of such a run says so.
//!
//! Guarantee: [`Device::cost`] is a pure function; an ideal device is no [`Device`] at all, so that
//! worlds need not look.
//!
//! Source: INIC, "Smaller Access latency to NIC registers", "Injecting packets directly into CPU
//! caches". Accesses per interrupt are those of common drivers: a status register and two of the
//! ring are read, and two are written to acknowledge and to unmask.

use crate::config::SectionConfig;
use crate::error::ConfigError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Costs nothing.
    Ideal,
    /// On the processor.
    Integrated,
    /// Behind a bus.
    Discrete,
    /// On the processor, and packets go to a cache.
    IntegratedDca,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Kind::Ideal => "ideal",
            Kind::Integrated => "integrated",
            Kind::Discrete => "discrete",
            Kind::IntegratedDca => "integrated-dca",
        }
    }

    /// The device of this kind.
    fn device(self) -> Device {
        let device = Device {
            register_read_ns: 250,
            register_write_ns: 100,
            per_interrupt: Accesses { reads: 3, writes: 2 },
            tx_burst: Accesses { reads: 0, writes: 1 },
            ..Device::default()
        };
        match self {
            Kind::Ideal => Device::default(),
            Kind::Integrated => device,
            Kind::Discrete => Device { register_read_ns: 1500, bus_ns: 1000, ..device },
            Kind::IntegratedDca => Device { dma: Dma::Cache, ..device },
        }
    }
}

/// Where received packets go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Dma {
    /// To memory.
    #[default]
    Memory,
    /// To a cache that target cores share.
    Cache,
}

/// Accesses to registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accesses {
    /// Reads, which stall.
    pub reads: u32,
    /// Writes, which are posted.
    pub writes: u32,
}

/// Work of a driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Interrupts taken.
    pub interrupts: u64,
    /// Looks at a ring that found packets.
    pub rx_bursts: u64,
    /// Packets received.
    pub rx_packets: u64,
    /// Times that it sent, one or several packets each.
    pub tx_bursts: u64,
    /// Packets sent.
    pub tx_packets: u64,
}

/// A device that costs something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// A read of a register, in nanoseconds.
    pub register_read_ns: u32,
    /// A write of a register, in nanoseconds.
    pub register_write_ns: u32,
    /// For an interrupt.
    pub per_interrupt: Accesses,
    /// For a burst of received packets.
    pub rx_burst: Accesses,
    /// For a received packet.
    pub rx_packet: Accesses,
    /// For packets sent together.
    pub tx_burst: Accesses,
    /// For a sent packet.
    pub tx_packet: Accesses,
    /// From the device to memory or back, in nanoseconds: a delay, not work.
    pub bus_ns: u32,
    /// Where received packets go.
    pub dma: Dma,
}

impl Work {
    /// A look of a target core: interrupts taken, packets received and sent.
    pub fn of_look(interrupts: usize, received: usize, sent: u64) -> Self {
        Work {
            interrupts: interrupts as u64,
            rx_bursts: u64::from(received != 0),
            rx_packets: received as u64,
            tx_bursts: u64::from(sent != 0),
            tx_packets: sent,
        }
    }
}

impl Device {
    /// Nanoseconds that a core pays for its driver's accesses.
    pub fn cost(&self, work: &Work) -> u64 {
        let each = |accesses: Accesses| {
            u64::from(accesses.reads) * u64::from(self.register_read_ns)
                + u64::from(accesses.writes) * u64::from(self.register_write_ns)
        };
        work.interrupts * each(self.per_interrupt)
            + work.rx_bursts * each(self.rx_burst)
            + work.rx_packets * each(self.rx_packet)
            + work.tx_bursts * each(self.tx_burst)
            + work.tx_packets * each(self.tx_packet)
    }
}

/// `[device]`: the device that target cores pay for.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DeviceSection {
    /// Preset for the other keys: "ideal" (the default) costs nothing, "integrated" is on the
    /// processor, "discrete" is on a bus, "integrated-dca" is on the processor and puts packets
    /// into a cache.
    pub kind: Option<Kind>,
    /// Nanoseconds of a register read.
    #[schemars(range(max = 1_000_000))]
    pub register_read_ns: Option<u32>,
    /// Nanoseconds of a register write.
    #[schemars(range(max = 1_000_000))]
    pub register_write_ns: Option<u32>,
    /// Register reads per interrupt.
    #[schemars(range(max = 1000), extend("x-advanced" = true))]
    pub reads_per_interrupt: Option<u32>,
    /// Register writes per interrupt.
    #[schemars(range(max = 1000), extend("x-advanced" = true))]
    pub writes_per_interrupt: Option<u32>,
    /// Register reads per burst of received packets.
    #[schemars(range(max = 1000), extend("x-advanced" = true))]
    pub rx_reads_per_burst: Option<u32>,
    /// Register writes per burst of received packets.
    #[schemars(range(max = 1000), extend("x-advanced" = true))]
    pub rx_writes_per_burst: Option<u32>,
    /// Register reads per received packet.
    #[schemars(range(max = 1000), extend("x-advanced" = true))]
    pub rx_reads_per_packet: Option<u32>,
    /// Register writes per received packet.
    #[schemars(range(max = 1000), extend("x-advanced" = true))]
    pub rx_writes_per_packet: Option<u32>,
    /// Register reads for packets sent together.
    #[schemars(range(max = 1000), extend("x-advanced" = true))]
    pub tx_reads_per_burst: Option<u32>,
    /// Register writes for packets sent together.
    #[schemars(range(max = 1000), extend("x-advanced" = true))]
    pub tx_writes_per_burst: Option<u32>,
    /// Register reads per sent packet.
    #[schemars(range(max = 1000), extend("x-advanced" = true))]
    pub tx_reads_per_packet: Option<u32>,
    /// Register writes per sent packet.
    #[schemars(range(max = 1000), extend("x-advanced" = true))]
    pub tx_writes_per_packet: Option<u32>,
    /// Nanoseconds between device and memory, for discrete devices; only in virtual time.
    #[schemars(range(max = 1_000_000))]
    pub bus_ns: Option<u32>,
    /// Destination of received packets: "memory" or "cache"; default: the destination of the kind.
    pub dma: Option<Dma>,
}

impl SectionConfig for DeviceSection {
    const NAME: &'static str = "device";
    const HELP: &'static str = "Register and bus times of a device, which target cores pay.";

    fn check(&self) -> Result<(), ConfigError> {
        let Some(kind) = self.kind else { return Ok(()) };
        let given = |is_given: bool, key, allowed: &str| match is_given {
            true => {
                let message = format!("found with kind = \"{}\", allowed: {allowed}", kind.name());
                Err(ConfigError::new(key, message))
            }
            false => Ok(()),
        };
        if kind == Kind::Ideal {
            let keys = self.values().into_iter().find(|(_, value)| value.is_some());
            keys.map_or(Ok(()), |(key, _)| given(true, key, "no other key, or no kind"))?;
        }
        let has_bus = kind == Kind::Discrete;
        given(self.bus_ns.is_some() && !has_bus, "bus_ns", "kind = \"discrete\", or no kind")?;
        let other_dma = self.dma.is_some_and(|dma| dma != kind.device().dma);
        given(other_dma, "dma", "without kind; \"integrated-dca\" has dma = \"cache\"")
    }
}

impl DeviceSection {
    fn values(&self) -> [(&'static str, Option<u32>); 13] {
        [
            ("register_read_ns", self.register_read_ns),
            ("register_write_ns", self.register_write_ns),
            ("reads_per_interrupt", self.reads_per_interrupt),
            ("writes_per_interrupt", self.writes_per_interrupt),
            ("rx_reads_per_burst", self.rx_reads_per_burst),
            ("rx_writes_per_burst", self.rx_writes_per_burst),
            ("rx_reads_per_packet", self.rx_reads_per_packet),
            ("rx_writes_per_packet", self.rx_writes_per_packet),
            ("tx_reads_per_burst", self.tx_reads_per_burst),
            ("tx_writes_per_burst", self.tx_writes_per_burst),
            ("tx_reads_per_packet", self.tx_reads_per_packet),
            ("tx_writes_per_packet", self.tx_writes_per_packet),
            ("bus_ns", self.bus_ns),
        ]
    }

    /// The device; none if it is ideal.
    pub fn device(&self) -> Option<Device> {
        let Device {
            register_read_ns,
            register_write_ns,
            per_interrupt,
            rx_burst,
            rx_packet,
            tx_burst,
            tx_packet,
            bus_ns,
            dma,
        } = self.kind.unwrap_or(Kind::Ideal).device();
        let or = |of: Accesses, reads: Option<u32>, writes: Option<u32>| Accesses {
            reads: reads.unwrap_or(of.reads),
            writes: writes.unwrap_or(of.writes),
        };
        let device = Device {
            register_read_ns: self.register_read_ns.unwrap_or(register_read_ns),
            register_write_ns: self.register_write_ns.unwrap_or(register_write_ns),
            per_interrupt: or(per_interrupt, self.reads_per_interrupt, self.writes_per_interrupt),
            rx_burst: or(rx_burst, self.rx_reads_per_burst, self.rx_writes_per_burst),
            rx_packet: or(rx_packet, self.rx_reads_per_packet, self.rx_writes_per_packet),
            tx_burst: or(tx_burst, self.tx_reads_per_burst, self.tx_writes_per_burst),
            tx_packet: or(tx_packet, self.tx_reads_per_packet, self.tx_writes_per_packet),
            bus_ns: self.bus_ns.unwrap_or(bus_ns),
            dma: self.dma.unwrap_or(dma),
        };
        let is_ideal = self.kind.is_none_or(|kind| kind == Kind::Ideal);
        Some(device).filter(|device| !is_ideal || *device != Device::default())
    }

    /// For people: the kind, or that its keys are given.
    pub fn name(&self) -> &'static str {
        self.kind.map_or("by its keys", Kind::name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::CardFile;
    use proptest::prelude::*;

    fn section(text: &str) -> Result<DeviceSection, String> {
        let file = CardFile::parse(&format!("[device]\n{text}"), None);
        file.map(|file| file.section::<DeviceSection>().keys).map_err(|error| error.to_string())
    }

    fn device(text: &str) -> Option<Device> {
        section(text).unwrap().device()
    }

    #[test]
    fn ideal_device_is_no_device() {
        assert_eq!(device(""), None);
        assert_eq!(device("kind = \"ideal\"\n"), None);
        assert_eq!(device("register_read_ns = 0\n"), None);
    }

    #[test]
    fn each_access_is_paid_once() {
        let device = device(
            "register_read_ns = 1000\nregister_write_ns = 10\nreads_per_interrupt = 3\n\
             writes_per_interrupt = 2\nrx_reads_per_burst = 1\nrx_writes_per_packet = 4\n\
             tx_writes_per_burst = 1\ntx_reads_per_packet = 2\n",
        )
        .unwrap();
        let cost = |interrupts, rx_bursts, rx_packets, tx_bursts, tx_packets| {
            device.cost(&Work { interrupts, rx_bursts, rx_packets, tx_bursts, tx_packets })
        };
        assert_eq!(cost(0, 0, 0, 0, 0), 0);
        assert_eq!(cost(1, 0, 0, 0, 0), 3020);
        assert_eq!(cost(0, 2, 0, 0, 0), 2000);
        assert_eq!(cost(0, 0, 5, 0, 0), 200);
        assert_eq!(cost(0, 0, 0, 3, 0), 30);
        assert_eq!(cost(0, 0, 0, 0, 2), 4000);
        assert_eq!(cost(1, 2, 5, 3, 2), 3020 + 2000 + 200 + 30 + 4000);
    }

    #[test]
    fn kinds_differ_in_reads_bus_and_cache() {
        let of = |kind: &str| device(&format!("kind = \"{kind}\"\n")).unwrap();
        let (integrated, discrete) = (of("integrated"), of("discrete"));
        assert!(discrete.register_read_ns > integrated.register_read_ns);
        assert_eq!((integrated.bus_ns, integrated.dma), (0, Dma::Memory));
        let same = Device {
            register_read_ns: integrated.register_read_ns,
            bus_ns: integrated.bus_ns,
            ..discrete
        };
        assert_eq!(same, integrated);
        assert_eq!(of("integrated-dca"), Device { dma: Dma::Cache, ..integrated });
        let other = device("kind = \"discrete\"\nregister_read_ns = 900\nbus_ns = 300\n").unwrap();
        assert_eq!(other, Device { register_read_ns: 900, bus_ns: 300, ..discrete });
        // With reads of the same length, only the bus differs, which is no work.
        let work =
            Work { interrupts: 7, rx_bursts: 7, rx_packets: 90, tx_bursts: 3, tx_packets: 9 };
        assert_eq!(
            Device { register_read_ns: 250, ..discrete }.cost(&work),
            integrated.cost(&work)
        );
    }

    #[test]
    fn keys_of_another_kind_are_refused() {
        for (text, wanted) in [
            ("kind = \"pci\"\n", "device.kind: found \"pci\""),
            (
                "kind = \"ideal\"\nregister_read_ns = 5\n",
                "device.register_read_ns: found with kind",
            ),
            (
                "kind = \"integrated\"\nbus_ns = 5\n",
                "device.bus_ns: found with kind = \"integrated\"",
            ),
            (
                "kind = \"discrete\"\ndma = \"cache\"\n",
                "device.dma: found with kind = \"discrete\"",
            ),
            ("dma = \"disk\"\n", "device.dma: found \"disk\""),
            ("register_read_ns = 2000000\n", "device.register_read_ns: found 2000000"),
            ("register_read_ns = \"fast\"\n", "device.register_read_ns: found \"fast\""),
            ("speed = 1\n", "device.speed: "),
        ] {
            let error = section(text).unwrap_err();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn costs_add_up(one in work(), other in work(), read: u16, write: u16, counts: [u8; 10]) {
            let at = |place: usize| Accesses {
                reads: counts[place].into(),
                writes: counts[place + 1].into(),
            };
            let device = Device {
                register_read_ns: read.into(),
                register_write_ns: write.into(),
                per_interrupt: at(0),
                rx_burst: at(2),
                rx_packet: at(4),
                tx_burst: at(6),
                tx_packet: at(8),
                ..Device::default()
            };
            let both = Work {
                interrupts: one.interrupts + other.interrupts,
                rx_bursts: one.rx_bursts + other.rx_bursts,
                rx_packets: one.rx_packets + other.rx_packets,
                tx_bursts: one.tx_bursts + other.tx_bursts,
                tx_packets: one.tx_packets + other.tx_packets,
            };
            prop_assert_eq!(device.cost(&both), device.cost(&one) + device.cost(&other));
        }
    }

    fn work() -> impl Strategy<Value = Work> {
        let some = || 0_u64..1000;
        (some(), some(), some(), some(), some()).prop_map(|of| Work {
            interrupts: of.0,
            rx_bursts: of.1,
            rx_packets: of.2,
            tx_bursts: of.3,
            tx_packets: of.4,
        })
    }
}
