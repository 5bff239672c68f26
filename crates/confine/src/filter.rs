//! System call filters, one for each role.
//!
//! Calls not on the list trap, so they are counted. Calls that make processes and threads fail
//! instead: libc makes them with all signals blocked, and a blocked trap ends the process. The
//! caller then reports that the thread cannot start.
//!
//! Source: seccomp(2).

use crate::Role;
use crate::calls::{self, Extras, MAKING_PROCESSES, Rule};
use crate::trap;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};
use std::collections::BTreeMap;

/// Restricts the calling thread to the calls of its role, permanently.
///
/// # Errors
/// The kernel lacks filters, or refuses this one.
pub(crate) fn install(role: Role, extras: Extras) -> Result<(), String> {
    let refused = |error: &dyn std::fmt::Display| format!("cannot filter system calls: {error}");
    let mut lists = calls::of(role);
    lists.extend(extras.lists());
    let makes_threads = lists.iter().any(|list| list.contains(&MAKING_PROCESSES[0]));
    if !makes_threads {
        apply(&failing().map_err(|error| refused(&error))?).map_err(|error| refused(&error))?;
    }
    apply(&listed(role, &lists, extras.loads).map_err(|error| refused(&error))?)
        .map_err(|error| refused(&error))
}

fn apply(program: &BpfProgram) -> Result<(), seccompiler::Error> {
    apply_filter(program)
}

fn arch() -> Result<TargetArch, seccompiler::BackendError> {
    std::env::consts::ARCH.try_into()
}

/// Processes and threads cannot be created.
fn failing() -> Result<BpfProgram, seccompiler::BackendError> {
    let rules = MAKING_PROCESSES.iter().map(|&(_, call)| (call, Vec::new())).collect();
    let error = SeccompAction::Errno(libc::EPERM as u32);
    SeccompFilter::new(rules, SeccompAction::Allow, error, arch()?)?.try_into()
}

/// Allows only the calls on the lists.
fn listed(
    role: Role,
    lists: &[calls::List],
    loads: bool,
) -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules = BTreeMap::<i64, Vec<SeccompRule>>::new();
    let making = MAKING_PROCESSES;
    for &(_, call) in lists.iter().copied().flatten().chain(making) {
        rules.insert(call, Vec::new());
    }
    for &Rule { call, argument, ref allowed } in calls::rules(role) {
        let condition = |operator, value| {
            SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
                .and_then(|condition| SeccompRule::new(vec![condition]))
        };
        let rule = match allowed {
            calls::Allowed::Without(bits) => {
                vec![condition(SeccompCmpOp::MaskedEq(*bits), 0)?]
            }
            calls::Allowed::OneOf(values) => values
                .iter()
                .map(|&value| condition(SeccompCmpOp::Eq, value))
                .collect::<Result<_, _>>()?,
            calls::Allowed::ThisProcess => {
                vec![condition(SeccompCmpOp::Eq, std::process::id().into())?]
            }
        };
        // A call passes if any of its rules allows it.
        rules.entry(call).or_default().extend(rule);
    }
    if loads {
        // Code of a file, as the loader maps it: never memory that is or could be written.
        let none_of = |argument, bits: i32| {
            let operator = SeccompCmpOp::MaskedEq(bits as u64);
            SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, 0)
        };
        let code = vec![none_of(2, libc::PROT_WRITE)?, none_of(3, libc::MAP_ANONYMOUS)?];
        rules.entry(libc::SYS_mmap).or_default().push(SeccompRule::new(code)?);
    }
    let filter = SeccompFilter::new(rules, SeccompAction::Trap, SeccompAction::Allow, arch()?)?;
    let mut program: BpfProgram = filter.try_into()?;
    for instruction in &mut program {
        // The handler learns the role from the data of the trap. Calls by another convention (32
        // bits) do not end the process.
        let is_return = u32::from(instruction.code) == libc::BPF_RET | libc::BPF_K;
        let refuses = [libc::SECCOMP_RET_TRAP, libc::SECCOMP_RET_KILL_PROCESS];
        if is_return && refuses.contains(&instruction.k) {
            instruction.k = libc::SECCOMP_RET_TRAP | u32::from(trap::data(role));
        }
    }
    Ok(program)
}
