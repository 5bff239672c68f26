//! A command is applied without an allocation or a release: a counting allocator watches.
//!
//! One test only, so that no other thread of the process allocates meanwhile.

use allocation_counter::AllocationInfo;
use picnic_core::config::Section;
use picnic_core::registry::BuildContext;
use picnic_core::time::Time;
use picnic_functions::registry::FUNCTIONS;

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
            let mut done = false;
            let counted =
                allocation_counter::measure(|| done = function.obey(&mut order, Time::ZERO));
            assert!(done, "{}.{}", entry.name, command.name);
            assert_eq!(counted, AllocationInfo::default(), "{}.{}", entry.name, command.name);
            applied += 1;
        }
    }
    assert!(applied > 0);
}
