//! The arena against a model: random histories of tasks, allocators and exhaustion.

use super::*;
use crate::alloc::slots::Slots;
use picnic_filter::code::AllocatorHandle;
use proptest::prelude::*;

/// A lie of an allocator.
#[derive(Clone, Copy, Debug)]
enum Lie {
    SamePlaceTwice,
    PastTheEnd,
    Misaligned,
    RefusesToFree,
    PanicsAtAllocate,
    PanicsAtFree,
    PanicsAtFigures,
}

const LIES: [Lie; 7] = [
    Lie::SamePlaceTwice,
    Lie::PastTheEnd,
    Lie::Misaligned,
    Lie::RefusesToFree,
    Lie::PanicsAtAllocate,
    Lie::PanicsAtFree,
    Lie::PanicsAtFigures,
];

/// A sound allocator that lies from its `after`th request on.
struct Liar {
    sound: BoundaryTag,
    lie: Lie,
    after: usize,
    last: usize,
}

/// A panic without a message on standard error.
fn panic_quietly() -> ! {
    std::panic::resume_unwind(Box::new("an allocator panics"))
}

impl Allocator for Liar {
    fn reset(&mut self, arena: &mut [u8]) {
        self.sound.reset(arena);
    }

    fn allocate(&mut self, arena: &mut [u8], bytes: usize, align: usize) -> Option<usize> {
        if self.after == 0 {
            match self.lie {
                Lie::SamePlaceTwice => return Some(self.last),
                Lie::PastTheEnd => return Some(arena.len() - bytes.min(arena.len()) + 16),
                Lie::Misaligned => return Some(8),
                Lie::PanicsAtAllocate => panic_quietly(),
                Lie::RefusesToFree | Lie::PanicsAtFree | Lie::PanicsAtFigures => {}
            }
        }
        self.after = self.after.saturating_sub(1);
        let place = self.sound.allocate(arena, bytes, align)?;
        self.last = place;
        Some(place)
    }

    fn free(&mut self, arena: &mut [u8], place: usize) -> bool {
        match self.lie {
            Lie::RefusesToFree if self.after == 0 => false,
            Lie::PanicsAtFree if self.after == 0 => panic_quietly(),
            _ => self.sound.free(arena, place),
        }
    }

    fn figures(&self, arena: &[u8]) -> Figures {
        if matches!(self.lie, Lie::PanicsAtFigures) {
            panic_quietly();
        }
        self.sound.figures(arena)
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// An allocation of a task: a block, or a charge for something else.
    Create { owner: u64, kind: usize, bytes: usize, align: u32 },
    /// Ends the nth allocation.
    Free(usize),
    /// Ends a task.
    Kill(u64),
    /// Allocates until there is no room.
    Exhaust { owner: u64, bytes: usize },
    /// Installs an allocator: sound ones of two kinds, or a liar.
    Install { owner: u64, bytes: usize, which: usize, after: usize },
    /// Removes the nth filter.
    Uninstall(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let (owner, bytes) = (1u64..4, prop_oneof![4 => 0usize..200, 1 => 200usize..3000]);
    prop_oneof![
        6 => (owner.clone(), 0usize..6, bytes, 0u32..9)
            .prop_map(|(owner, kind, bytes, align)| Step::Create { owner, kind, bytes, align }),
        4 => any::<usize>().prop_map(Step::Free),
        1 => owner.clone().prop_map(Step::Kill),
        1 => (owner.clone(), 100usize..2000)
            .prop_map(|(owner, bytes)| Step::Exhaust { owner, bytes }),
        2 => (owner, 0usize..6000, 0usize..9, 0usize..4).prop_map(
            |(owner, bytes, which, after)| Step::Install { owner, bytes, which, after }
        ),
        1 => any::<usize>().prop_map(Step::Uninstall),
    ]
}

/// An allocation of the model.
struct Held {
    name: Name,
    /// For all kinds but blocks.
    charge: Option<Charge>,
    owner: u64,
    kind: Kind,
    bytes: usize,
    letter: u8,
}

struct Model {
    memory: Memory,
    held: Vec<Held>,
    filters: Vec<(u64, Arc<Listed>)>,
    letter: u8,
}

impl Model {
    fn create(&mut self, owner: u64, kind: Kind, bytes: usize, align: usize) -> bool {
        let made = self.memory.allocate(TaskId(owner), kind, bytes, align);
        let name = match made {
            Ok(name) => name,
            Err(MemoryError::Exhausted { kind: named, wanted, .. }) => {
                assert_eq!((named, wanted), (kind, bytes));
                return false;
            }
            Err(other) => panic!("{other}"),
        };
        self.letter = self.letter.wrapping_add(1);
        self.memory.bytes(name, bytes, 0..bytes).unwrap().fill(self.letter);
        let returns = self.memory.returns.clone();
        let charge = (kind != Kind::Block).then(|| Charge::new(name, returns));
        self.held.push(Held { name, charge, owner, kind, bytes, letter: self.letter });
        true
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Create { owner, kind, bytes, align } => {
                self.create(owner, Kind::ALL[kind], bytes, 1 << align);
            }
            Step::Free(index) => {
                if let Some(index) = index.checked_rem(self.held.len()) {
                    let held = self.held.swap_remove(index);
                    match held.charge {
                        Some(charge) => drop(charge),
                        None => self.memory.free(held.name),
                    }
                }
            }
            Step::Kill(owner) => {
                // A task's objects are dropped first, then the rest that it had is released.
                self.held.retain(|held| held.owner != owner);
                self.memory.release_all(TaskId(owner));
                for (_, listed) in self.filters.extract_if(.., |(other, _)| *other == owner) {
                    listed.uninstall();
                }
            }
            Step::Exhaust { owner, bytes } => while self.create(owner, Kind::Mailbox, bytes, 16) {},
            Step::Install { owner, bytes, which, after } => {
                let allocator: Box<dyn Allocator> = match which {
                    0 => Box::new(BoundaryTag::default()),
                    1 => Box::new(Slots::of(256)),
                    lie => {
                        let (sound, lie) = (BoundaryTag::default(), LIES[lie - 2]);
                        Box::new(Liar { sound, lie, after, last: 16 })
                    }
                };
                let listed = Arc::new(Listed::default());
                match self.memory.install(TaskId(owner), bytes, allocator, listed.clone()) {
                    Ok(()) => {
                        listed.install();
                        self.filters.push((owner, listed));
                    }
                    Err(MemoryError::Exhausted { kind: Kind::Allocator, .. }) => {}
                    Err(other) => panic!("{other}"),
                }
            }
            Step::Uninstall(index) => {
                if let Some(index) = index.checked_rem(self.filters.len()) {
                    self.filters.swap_remove(index).1.uninstall();
                }
            }
        }
    }

    fn check(&mut self) -> Result<(), TestCaseError> {
        let report = self.memory.report();
        // Each block has its own bytes still.
        for held in &self.held {
            let bytes = self.memory.bytes(held.name, held.bytes, 0..held.bytes).unwrap();
            prop_assert!(bytes.iter().all(|&byte| byte == held.letter), "{}", held.kind);
        }
        // Owners, kinds and regions have the same bytes, by three ways of counting.
        let sum = |parts: &mut dyn Iterator<Item = (usize, usize)>| {
            parts.fold((0, 0), |sum, part| (sum.0 + part.0, sum.1 + part.1))
        };
        let owners = sum(&mut report.owners.iter().map(|it| (it.allocations, it.bytes)));
        let kinds = sum(&mut report.kinds.iter().map(|it| (it.allocations, it.bytes)));
        let regions = self.memory.regions.iter();
        let regions = sum(&mut regions.map(|it| (it.blocks, it.allocated_bytes())));
        prop_assert_eq!(owners, kinds);
        prop_assert_eq!(owners, regions);
        let of = |kind| {
            let held = || self.held.iter().filter(move |held| held.kind == kind);
            let units = |held: &Held| held.bytes.max(1).next_multiple_of(UNIT_BYTES);
            (held().count(), held().map(units).sum::<usize>())
        };
        for kind in Kind::ALL.into_iter().filter(|&kind| kind != Kind::Allocator) {
            let found = report.kinds.iter().find(|other| other.kind == kind);
            let found = found.map_or((0, 0), |found| (found.allocations, found.bytes));
            prop_assert_eq!(found, of(kind), "{}", kind);
        }
        // All of the arena is allocated, free, or a tag.
        let whole = &self.memory.regions[0];
        let (figures, bytes) = (report.arena, whole.allocated_bytes());
        prop_assert_eq!(
            figures.used_bytes + figures.free_bytes + 16 * figures.free_blocks,
            figures.arena_bytes
        );
        let overhead = figures.used_bytes - bytes;
        prop_assert_eq!(figures.blocks, whole.blocks);
        prop_assert!((16 * figures.blocks..=32 * figures.blocks).contains(&overhead));
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 10_000, failure_persistence: None, ..Default::default()
    })]

    #[test]
    fn no_byte_is_lost(steps in prop::collection::vec(step(), 1..24)) {
        let memory = Memory::new(16 << 10, 0, TransferCost::default());
        let mut model = Model { memory, held: Vec::new(), filters: Vec::new(), letter: 0 };
        for step in &steps {
            model.take(step);
            model.check()?;
        }
        for owner in 1..4 {
            model.take(&Step::Kill(owner));
        }
        let report = model.memory.report();
        let arena = report.arena;
        prop_assert_eq!((arena.blocks, arena.used_bytes, arena.free_blocks), (0, 0, 1));
        prop_assert_eq!((report.installed_allocators, model.memory.regions.len()), (0, 1));
        prop_assert!(report.owners.is_empty() && report.kinds.is_empty());
    }
}

#[test]
fn every_lie_uninstalls_and_counts() {
    for lie in LIES {
        let mut memory = Memory::new(16 << 10, 0, TransferCost::default());
        let listed = Arc::new(Listed::default());
        let liar = Liar { sound: BoundaryTag::default(), lie, after: 1, last: 16 };
        memory.install(TaskId(1), 4096, Box::new(liar), listed.clone()).unwrap();
        let before = memory.allocate(TaskId(1), Kind::Block, 100, 16).unwrap();
        assert_eq!(
            memory.live[before.index as usize].as_ref().unwrap().region,
            0,
            "not yet listed"
        );
        listed.install();
        let first = memory.allocate(TaskId(1), Kind::Block, 100, 16).unwrap();
        memory.bytes(first, 100, 0..100).unwrap().fill(7);
        let second = memory.allocate(TaskId(1), Kind::Block, 100, 32).unwrap();
        memory.bytes(second, 100, 0..100).unwrap().fill(8);
        assert_eq!(memory.bytes(first, 100, 0..100).unwrap(), [7; 100], "{lie:?}");
        for name in [first, second, before] {
            memory.free(name);
        }
        // Its figures are asked for only if it has no room.
        let is_uncaught = matches!(lie, Lie::PanicsAtFigures);
        let report = memory.report();
        assert_eq!(report.broken_allocators, u64::from(!is_uncaught), "{lie:?}");
        assert_eq!(listed.counts().broken, !is_uncaught, "{lie:?}");
        assert_eq!(report.installed_allocators, usize::from(is_uncaught), "{lie:?}");
        let answer = memory.allocate(TaskId(1), Kind::Block, 5_000, 16);
        assert_eq!(answer.is_ok(), !is_uncaught, "{lie:?}");
    }
}
