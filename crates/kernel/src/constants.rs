//! A plan as constants of the programs, set before verification.

use crate::plan::{Action, MOST_STEPS, MOST_WIRES, Plan};
use crate::tables::BYTES_HASHED;
use picnic_forms::{ByHash, FlowHash, Hashed, HashedOver, KernelForm};

/// Families by transports.
const KINDS: usize = 9;

const STEP_NEXT: u32 = 1;
const STEP_DROP: u32 = 2;
const STEP_BY_WIRE: u32 = 3;
const STEP_BY_HASH: u32 = 4;
const STEP_SAMPLE: u32 = 5;
const STEP_VLANS: u32 = 6;
const STEP_POLICE: u32 = 7;
const STEP_BY_RULES: u32 = 8;
const STEP_OBJECT: u32 = 9;
const STEP_BY_POOL: u32 = 10;
/// Instead of a queue: on to the next function.
const ONWARD: u32 = 0xffff;

/// The constants by name, as in the programs.
#[derive(Default)]
pub(crate) struct Constants {
    pub(crate) steps: [u32; MOST_STEPS],
    pub(crate) queue_of_wire: [u32; MOST_WIRES],
    pub(crate) interfaces: [u32; MOST_WIRES],
    pub(crate) programs: [u32; MOST_WIRES],
    pub(crate) are_shared: u32,
    pub(crate) rss_hash: u32,
    pub(crate) rss_initial: u32,
    pub(crate) rss_default_queue: u32,
    pub(crate) rss_over: [u32; KINDS],
    pub(crate) pool_hash: Vec<[u32; 256]>,
    pub(crate) pool_over: [u32; KINDS],
    pub(crate) sample_every: u32,
    pub(crate) sample_queue: u32,
    pub(crate) sample_drops_rest: u32,
    pub(crate) police_per_wire: u32,
    pub(crate) reads_metadata: u32,
    pub(crate) stamped: u32,
}

impl Constants {
    pub(crate) fn of(plan: &Plan) -> Self {
        let mut constants = Constants {
            programs: plan.programs().map(|number| number as u32),
            rss_default_queue: ONWARD,
            pool_hash: vec![[0; 256]; BYTES_HASHED],
            sample_every: 1,
            sample_queue: ONWARD,
            ..Constants::default()
        };
        let own = |(wire, &number): (usize, &u32)| wire == number as usize;
        constants.are_shared = u32::from(!constants.programs.iter().enumerate().all(own));
        let places = constants.interfaces.iter_mut();
        places.zip(&plan.wires).for_each(|(place, wire)| *place = wire.index);
        for (wire, planned) in plan.wires.iter().enumerate() {
            constants.stamped |= u32::from(planned.stamps) << wire;
        }
        for (step, planned) in constants.steps.iter_mut().zip(&plan.steps) {
            *step = match &planned.action {
                Action::Object(_) => STEP_OBJECT,
                // Its own packets are not here.
                Action::Elsewhere => STEP_NEXT,
                Action::Form(form) => match form {
                    KernelForm::Next => STEP_NEXT,
                    KernelForm::Drop => STEP_DROP,
                    KernelForm::ByWire(_) => STEP_BY_WIRE,
                    KernelForm::ByHash(_) => STEP_BY_HASH,
                    KernelForm::Sample { .. } => STEP_SAMPLE,
                    KernelForm::Vlans { .. } => STEP_VLANS,
                    KernelForm::Police { .. } => STEP_POLICE,
                    KernelForm::ByRules { .. } => STEP_BY_RULES,
                    KernelForm::ByPool(_) => STEP_BY_POOL,
                    // Refused when the card was planned.
                    KernelForm::Object { .. }
                    | KernelForm::Interface { .. }
                    | KernelForm::Stack(..) => STEP_NEXT,
                },
            };
        }
        for (step, planned) in plan.steps.iter().enumerate() {
            let form = match &planned.action {
                Action::Form(form) => form,
                Action::Object(file) => {
                    constants.reads_metadata |= u32::from(file.metadata) << step;
                    continue;
                }
                Action::Elsewhere => continue,
            };
            match form {
                KernelForm::Police { per_wire, .. } => {
                    constants.police_per_wire = (*per_wire).into()
                }
                KernelForm::ByWire(queues) => {
                    let places = constants.queue_of_wire.iter_mut();
                    places.zip(queues).for_each(|(place, &queue)| *place = queue.into());
                }
                KernelForm::ByHash(by_hash) => constants.hash_by(by_hash),
                KernelForm::ByPool(pools) => {
                    if let FlowHash::Toeplitz(bytes) = &pools.hash {
                        constants.pool_hash.clone_from(bytes);
                    }
                    constants.pool_over = over(pools.ipv4, pools.ipv6);
                }
                KernelForm::Sample { every, queue, drop_rest } => {
                    constants.sample_every = *every;
                    constants.sample_queue = queue.map_or(ONWARD, u32::from);
                    constants.sample_drops_rest = (*drop_rest).into();
                }
                // What commands change is in maps.
                _ => {}
            }
        }
        constants
    }

    fn hash_by(&mut self, by_hash: &ByHash) {
        (self.rss_hash, self.rss_initial) = match by_hash.hash {
            FlowHash::Toeplitz(_) => (0, 0),
            FlowHash::Lookup3(initial) => (1, initial),
            FlowHash::Lookup2(initial) => (2, initial),
        };
        self.rss_default_queue = by_hash.default_queue.map_or(ONWARD, u32::from);
        self.rss_over = over(by_hash.ipv4, by_hash.ipv6);
    }
}

/// The hashed fields, by family and transport.
fn over(ipv4: HashedOver, ipv6: HashedOver) -> [u32; KINDS] {
    let number = |over: Hashed| match over {
        Hashed::Nothing => 0,
        Hashed::Addresses => 1,
        Hashed::Ports => 2,
    };
    let [a, b, c] = [ipv4.other, ipv4.tcp, ipv4.udp].map(number);
    let [d, e, f] = [ipv6.other, ipv6.tcp, ipv6.udp].map(number);
    [0, 0, 0, a, b, c, d, e, f]
}
