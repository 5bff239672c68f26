//! A command is applied without an allocation or a release: a counting allocator watches.
//!
//! One test only, so that no other thread of the process allocates meanwhile.
// The allocator is the one thing here that cannot be said without it.
#![allow(unsafe_code, missing_docs)]

use picnic_core::config::Section;
use picnic_core::registry::BuildContext;
use picnic_core::time::Time;
use picnic_functions::registry::FUNCTIONS;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

fn count() {
    // A thread that is ending has no counter any more, and nothing to count.
    let _ = COUNT.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: every call goes on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn commands_are_applied_without_allocating_or_freeing() {
    let context = BuildContext::default();
    let mut applied = 0;
    for entry in FUNCTIONS {
        let section = Section::named("function", entry.name);
        for command in entry.commands {
            let mut function = entry.build(&section, &context).unwrap();
            let example = serde_json::from_str(command.example).unwrap();
            let mut order = command.prepare(&example, &context).unwrap();
            let before = COUNT.get();
            let done = function.obey(&mut order, Time::ZERO);
            let counted = COUNT.get() - before;
            assert!(done, "{}.{}", entry.name, command.name);
            assert_eq!(counted, 0, "{}.{}", entry.name, command.name);
            applied += 1;
        }
    }
    assert!(applied > 0);
}
