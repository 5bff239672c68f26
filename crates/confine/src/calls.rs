//! The system calls of each role.
//!
//! A list holds the calls that its threads were seen to make, and calls that the libraries below
//! may make instead: all on open descriptors or on memory. No list has execve, ptrace, mount or any
//! call that could undo a filter; setns is allowed only where kernel programs of interfaces in
//! namespaces are changed.

use crate::Role;

/// Name and number.
pub(crate) type Call = (&'static str, i64);
pub(crate) type List = &'static [Call];

macro_rules! calls {
    ($($name:ident)*) => { &[$((stringify!($name), libc::$name)),*] };
}

/// Calls that exist only on some processors.
#[cfg(target_arch = "x86_64")]
macro_rules! older_calls {
    ($($name:ident)*) => { calls!($($name)*) };
}
#[cfg(not(target_arch = "x86_64"))]
macro_rules! older_calls {
    ($($name:ident)*) => {
        &[]
    };
}

/// Memory, time, waiting and ending; reading, writing and closing open descriptors.
const EVERY_THREAD: List = calls! {
    SYS_read SYS_readv SYS_write SYS_writev SYS_close SYS_fcntl SYS_fstat SYS_lseek
    SYS_munmap SYS_mremap SYS_madvise SYS_brk
    SYS_futex SYS_ppoll SYS_clock_gettime SYS_clock_nanosleep SYS_nanosleep SYS_restart_syscall
    SYS_sched_yield SYS_sched_getaffinity SYS_getcpu SYS_getpid SYS_gettid SYS_getrandom
    SYS_rt_sigreturn SYS_rt_sigprocmask SYS_sigaltstack SYS_exit SYS_exit_group
    SYS_set_robust_list SYS_rseq SYS_membarrier
};
const EVERY_THREAD_OLDER: List = older_calls! { SYS_poll };

/// Packets through open sockets, and the end of a guest's connection.
const PACKETS: List = calls! {
    SYS_shutdown SYS_sendto SYS_sendmsg SYS_sendmmsg SYS_recvfrom SYS_recvmsg SYS_recvmmsg
    SYS_getsockopt SYS_setsockopt SYS_getsockname SYS_bind SYS_pread64 SYS_pwrite64
    SYS_epoll_ctl SYS_epoll_pwait
};

/// Standard output on a socket, without blocking.
const OUTPUT: List = calls! { SYS_sendto };

/// Writing, completing and renaming files.
const FILES: List = calls! {
    SYS_openat SYS_newfstatat SYS_statx SYS_fsync SYS_fdatasync SYS_ftruncate
    SYS_unlinkat SYS_renameat SYS_renameat2 SYS_pread64 SYS_pwrite64
};
const FILES_OLDER: List = older_calls! { SYS_unlink SYS_rename };

/// Requests to the kernel about interfaces, through an open netlink socket.
const NETLINK: List = calls! { SYS_sendto SYS_recvfrom };

/// Undoing changes: journals, settings, control groups, affinity of other threads.
const STOPPING: List = calls! {
    SYS_getdents64 SYS_mkdirat SYS_flock SYS_readlinkat SYS_faccessat SYS_sched_setaffinity
    SYS_geteuid SYS_getuid SYS_getegid SYS_getgid SYS_uname SYS_sysinfo SYS_statfs SYS_fstatfs
    SYS_fchmod SYS_shutdown
};
const STOPPING_OLDER: List = older_calls! { SYS_mkdir SYS_rmdir SYS_readlink SYS_access };

/// Clients of a socket, threads for their captures, which confine themselves, and doorbells of
/// their channels.
const CLIENTS: List = calls! {
    SYS_accept4 SYS_seccomp SYS_capget SYS_capset SYS_sched_setaffinity
    SYS_eventfd2
};

/// Reopening an xdp wire's sockets.
const XDP: List = calls! { SYS_bpf SYS_munlock };

/// Front ends of a guest, their memory and their notifications.
const GUEST: List = calls! {
    SYS_accept4 SYS_connect SYS_readlinkat SYS_unlinkat SYS_fstatfs SYS_ftruncate
};
const GUEST_OLDER: List = older_calls! { SYS_unlink };

/// Kernel programs: their maps, and their replacement.
const PROGRAMS: List = calls! { SYS_bpf };
/// Interfaces in other namespaces.
const NAMESPACES: List = calls! { SYS_setns };
/// Processor time of kernel threads.
const THREADS_TIMES: List = calls! { SYS_openat SYS_newfstatat SYS_statx };

/// Additional permissions of a role, depending on the card.
#[derive(Clone, Copy)]
pub(crate) struct Extras {
    /// Shared objects: mapping code from files.
    pub(crate) loads: bool,
    /// Kernel programs, for roles without that list.
    pub(crate) programs: bool,
    /// Network namespaces.
    pub(crate) namespaces: bool,
}

impl Extras {
    /// The additional lists.
    pub(crate) fn lists(self) -> impl Iterator<Item = List> {
        let programs = self.programs.then_some(PROGRAMS);
        programs.into_iter().chain(self.namespaces.then_some(NAMESPACES))
    }
}

/// Calls that make threads and processes.
pub(crate) const MAKING_PROCESSES: List = MAKING;
#[cfg(target_arch = "x86_64")]
const MAKING: List = calls! { SYS_clone3 SYS_clone SYS_fork SYS_vfork };
#[cfg(not(target_arch = "x86_64"))]
const MAKING: List = calls! { SYS_clone3 SYS_clone };

/// The lists of a role.
pub(crate) fn of(role: Role) -> Vec<List> {
    let mut lists = vec![EVERY_THREAD, EVERY_THREAD_OLDER];
    match role {
        Role::Main => lists.extend([OUTPUT, FILES, FILES_OLDER, STOPPING, STOPPING_OLDER]),
        Role::Borrowed => lists.push(PACKETS),
        Role::Target => lists.push(NETLINK),
        Role::Control => lists.extend([
            PACKETS,
            FILES,
            FILES_OLDER,
            STOPPING,
            STOPPING_OLDER,
            CLIENTS,
            MAKING_PROCESSES,
        ]),
        Role::Capture => lists.extend([FILES, FILES_OLDER, PACKETS]),
        Role::Xdp => lists.extend([PACKETS, FILES, XDP]),
        Role::Programs => lists.extend([PROGRAMS, THREADS_TIMES]),
        Role::Guest => lists.extend([PACKETS, GUEST, GUEST_OLDER]),
    }
    lists
}

/// Allowed values of an argument.
#[derive(Debug)]
pub(crate) enum Allowed {
    /// Any value without these bits.
    Without(u64),
    OneOf(&'static [u64]),
    /// The process ID.
    ThisProcess,
}

/// A call that is allowed only with certain arguments.
#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) call: i64,
    /// Position of the argument.
    pub(crate) argument: u8,
    pub(crate) allowed: Allowed,
}

/// Memory that is never executable, thread names, and ending by `abort`, a second Ctrl-C or a
/// segmentation fault: the standard library's handler ends the process with the default action of
/// that signal.
const EVERY_THREADS_RULES: [Rule; 5] = [
    Rule { call: libc::SYS_mmap, argument: 2, allowed: NOT_EXECUTABLE },
    Rule { call: libc::SYS_mprotect, argument: 2, allowed: NOT_EXECUTABLE },
    Rule {
        call: libc::SYS_prctl,
        argument: 0,
        allowed: Allowed::OneOf(&[
            libc::PR_SET_NAME as u64,
            libc::PR_SET_NO_NEW_PRIVS as u64,
            libc::PR_CAP_AMBIENT as u64,
        ]),
    },
    Rule { call: libc::SYS_tgkill, argument: 0, allowed: Allowed::ThisProcess },
    Rule {
        call: libc::SYS_rt_sigaction,
        argument: 0,
        allowed: Allowed::OneOf(&[
            libc::SIGINT as u64,
            libc::SIGTERM as u64,
            libc::SIGQUIT as u64,
            libc::SIGABRT as u64,
            libc::SIGSEGV as u64,
            libc::SIGBUS as u64,
        ]),
    },
];
const NOT_EXECUTABLE: Allowed = Allowed::Without(libc::PROT_EXEC as u64);

/// Requests as the kernel compares them: C libraries give the same number different types.
macro_rules! requests {
    ($($request:expr),+ $(,)?) => {
        Allowed::OneOf(&[$($request as u32 as u64),+])
    };
}

const TERMINAL: Rule =
    Rule { call: libc::SYS_ioctl, argument: 1, allowed: requests![libc::TCGETS, libc::TIOCGWINSZ] };
/// Non-blocking sockets, as the standard library opens them.
const CLIENT: Rule =
    Rule { call: libc::SYS_ioctl, argument: 1, allowed: requests![libc::FIONBIO, libc::TCGETS] };
/// The memory of channels, which neither side can shrink.
const CHANNEL: Rule = Rule {
    call: libc::SYS_memfd_create,
    argument: 1,
    allowed: Allowed::OneOf(&[(libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) as u64]),
};
/// Queries about interfaces; no changes.
const INTERFACE: Rule = Rule {
    call: libc::SYS_ioctl,
    argument: 1,
    allowed: requests![
        libc::SIOCGIFINDEX,
        libc::SIOCGIFNAME,
        libc::SIOCGIFFLAGS,
        libc::SIOCGIFHWADDR,
        libc::SIOCGIFMTU,
        libc::SIOCETHTOOL,
    ],
};
/// Reattaching a TAP device that returned, which anyone may do unless its owner forbids it. Not for
/// roles that may open others.
const TAP: Rule = Rule {
    call: libc::SYS_ioctl,
    argument: 1,
    allowed: requests![
        libc::SIOCGIFINDEX,
        libc::TUNSETIFF,
        libc::TUNSETVNETHDRSZ,
        libc::TUNSETOFFLOAD,
    ],
};
/// Its own priority.
const PRIORITY: Rule =
    Rule { call: libc::SYS_sched_setscheduler, argument: 0, allowed: Allowed::OneOf(&[0]) };
/// Packet sockets, and sockets for queries about interfaces.
const SOCKETS: Rule = Rule {
    call: libc::SYS_socket,
    argument: 0,
    allowed: Allowed::OneOf(&[
        libc::AF_XDP as u64,
        libc::AF_NETLINK as u64,
        libc::AF_INET as u64,
        libc::AF_PACKET as u64,
    ]),
};

/// Connections to front ends.
const FRONT_END: Rule =
    Rule { call: libc::SYS_socket, argument: 0, allowed: Allowed::OneOf(&[libc::AF_UNIX as u64]) };

/// The calls of a role that are allowed only with certain arguments.
pub(crate) fn rules(role: Role) -> impl Iterator<Item = &'static Rule> {
    const TERMINALS: &[Rule] = &[TERMINAL];
    const CLIENT_RULES: &[Rule] = &[CLIENT, CHANNEL];
    const BORROWED_RULES: &[Rule] = &[INTERFACE, TAP];
    const TARGET_RULES: &[Rule] = &[PRIORITY, TAP];
    const XDP_RULES: &[Rule] = &[INTERFACE, SOCKETS];
    const GUEST_RULES: &[Rule] = &[FRONT_END, CHANNEL];
    let own = match role {
        Role::Main | Role::Capture => TERMINALS,
        Role::Control => CLIENT_RULES,
        Role::Borrowed => BORROWED_RULES,
        Role::Target => TARGET_RULES,
        Role::Xdp => XDP_RULES,
        Role::Programs => &[],
        Role::Guest => GUEST_RULES,
    };
    const EVERYBODYS: &[Rule] = &EVERY_THREADS_RULES;
    EVERYBODYS.iter().chain(own)
}

/// A call's name, or its number.
pub(crate) fn name(number: usize) -> String {
    /// Calls on no list: those that an attacker would try first.
    const OTHERS: List = calls! {
        SYS_execve SYS_execveat SYS_ptrace SYS_socket SYS_socketpair SYS_connect SYS_listen
        SYS_kill SYS_setns SYS_unshare SYS_mount SYS_chdir SYS_chroot SYS_setuid SYS_ioctl
        SYS_mmap SYS_mprotect SYS_prctl SYS_tgkill SYS_pidfd_open SYS_process_vm_readv
        SYS_process_vm_writev SYS_memfd_create SYS_io_uring_setup SYS_userfaultfd
        SYS_perf_event_open SYS_rt_sigaction SYS_setpriority SYS_sched_setscheduler
        SYS_prlimit64 SYS_wait4 SYS_dup SYS_pipe2 SYS_eventfd2 SYS_epoll_create1
        SYS_linkat SYS_symlinkat SYS_fchmodat SYS_fchownat SYS_utimensat SYS_set_tid_address
        SYS_getppid SYS_gettimeofday SYS_mlock SYS_timerfd_create SYS_inotify_init1
    };
    const OTHERS_OLDER: List = older_calls! {
        SYS_open SYS_stat SYS_lstat SYS_epoll_wait SYS_pipe SYS_dup2 SYS_select SYS_time
        SYS_arch_prctl
    };
    let listed = Role::ALL.into_iter().flat_map(of).chain([OTHERS, OTHERS_OLDER]);
    let found = listed.flatten().find(|(_, call)| *call == number as i64);
    match found {
        Some((name, _)) => name.trim_start_matches("SYS_").into(),
        None => format!("number {number}"),
    }
}
